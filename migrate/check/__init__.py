"""What of a script would fail, hang, be slow or be wrong on a TPU: one hazard a file, found by a linter."""

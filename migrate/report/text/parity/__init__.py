"""Terminal view and JSON of `migrate parity`."""

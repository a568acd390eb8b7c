"""Linter for code that would fail, hang, be slow or be wrong on a TPU. Each hazard has a file."""

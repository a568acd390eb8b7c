"""Pickles, read without running them: what they name becomes records, known values plain data."""

"""Pickles read without running them: names become records, known values become plain data."""

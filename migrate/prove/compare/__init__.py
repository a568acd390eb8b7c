"""Comparison, which runs in our process: the recordings of two runs."""

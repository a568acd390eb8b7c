"""Calls that raise on XLA, or do something else (XLA8xx)."""

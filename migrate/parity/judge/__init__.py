"""Judgment: distance of a side from the truth, and whether it exceeds the limits."""

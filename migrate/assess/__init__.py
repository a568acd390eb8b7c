"""Decide whether a port is worth it: its effort, where the step fits, and the cost of runs."""

"""Collectives that are still pending, and the code that reads their results."""

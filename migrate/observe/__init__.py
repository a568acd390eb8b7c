"""Observe XLA while a script runs: which graphs it compiled and executed, when, and for which line."""

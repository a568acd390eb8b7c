"""Ranks: replicas that do not do the same hang (XLA3xx)."""

"""Ranks: replicas that run different operations hang (XLA3xx)."""

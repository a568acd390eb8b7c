"""Dtypes (XLA5xx)."""

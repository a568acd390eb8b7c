"""Hazards of several replicas together: code that raises or differs on XLA (XLA8xx)."""

"""Capture of a Flax model's layers during a run."""

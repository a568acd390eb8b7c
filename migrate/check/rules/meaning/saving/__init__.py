"""Hazards of saving and loading checkpoints (XLA8xx)."""

"""Checkpoint formats, each read lazily and without running code."""

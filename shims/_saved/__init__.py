"""Helpers for checkpoints: atomic files, agreement among ranks, random states."""

"""Capture of a torch model's layers during a run."""

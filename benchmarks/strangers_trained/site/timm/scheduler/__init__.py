"""Schedules of the learning rate: see `cosine_lr` and `step_lr`."""

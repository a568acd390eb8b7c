"""The step: which statements of a loop go into one, and what waits until after it."""

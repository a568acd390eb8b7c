"""Functions that the calls of a project run, and their effects on the training state."""

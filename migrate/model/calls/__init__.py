"""What the calls of a project run: which function, with which effect on the training state."""

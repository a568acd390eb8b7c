"""Where the training steps of a script are, and what belongs in them."""

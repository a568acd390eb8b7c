"""Lower what a user names to the program that a compiler gets: a training step or a forward pass."""

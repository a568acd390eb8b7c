"""From what a user names to the program that a compiler is given: a step of training, or a forward pass."""

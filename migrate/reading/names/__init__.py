"""What the names of a script are bound to."""

"""Training steps of a script, and the code that belongs in them."""

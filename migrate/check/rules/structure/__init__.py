"""Device checks and the structure of the script (XLA7xx)."""

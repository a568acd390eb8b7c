"""Names, functions and settings read from the original's source."""

"""The two sides of a comparison, each in a process of its own."""

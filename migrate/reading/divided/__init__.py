"""Data that replicas divide by hand, and the loops over it in which they meet."""

"""Dynamic shapes: one more compilation for every new shape (XLA1xx)."""

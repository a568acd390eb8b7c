"""Libraries that need CUDA (XLA4xx)."""

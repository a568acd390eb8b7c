"""The benchmark of issue 40: 45 PyTorch training scripts, and the judge of what becomes of them in JAX."""

"""Rewrite PyTorch DDP scripts for TPUs, and prove that they still compute the same."""

__version__ = "0.4.0"

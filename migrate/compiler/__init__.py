"""The TPU's compiler, ahead of time and without a TPU, and what its programs say."""

"""What is saved, and what comes back from a checkpoint (XLA8xx)."""

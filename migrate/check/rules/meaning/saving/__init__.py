"""What is saved and does not come back as it was (XLA8xx)."""

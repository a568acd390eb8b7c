"""`migrate train`: a PyTorch training script as a JAX program, proven on the script's own batches."""

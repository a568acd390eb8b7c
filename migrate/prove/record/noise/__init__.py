"""What runs in ours, to know what rounding does to the original: run it otherwise, look at its gradients."""

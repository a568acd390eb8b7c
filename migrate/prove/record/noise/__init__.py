"""Effect of rounding on the original: run it with other rounding, and inspect its gradients."""

"""Comparisons besides the layers: gradients, training, logits, decoding, batches. One file each."""

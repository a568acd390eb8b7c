"""What is compared beside the layers: gradients, training, logits, decoding, batches. One file each."""

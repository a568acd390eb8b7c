"""Alignment: pairs the layers, tensors and weights of a side with those of the truth."""

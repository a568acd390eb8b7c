"""Torch checkpoints into Flax pytrees, exactly, with every key accounted for."""

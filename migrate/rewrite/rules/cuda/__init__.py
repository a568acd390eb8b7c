"""CUDA's own: streams, timers, its memory, pinned memory, fused optimizers."""

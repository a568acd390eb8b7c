"""Simulated torch_xla replicas on the CPU: one process each, refusing everything a TPU refuses."""

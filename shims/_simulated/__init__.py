"""Replicas of torch_xla, simulated on the CPU: a process each, which refuse what a TPU refuses."""

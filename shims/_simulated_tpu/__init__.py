"""torch_tpu on XLA:CPU: a process is a replica with one device, collectives run over gloo."""

"""Run PyTorch CUDA code on CUDA, CPU and TPU from one source."""

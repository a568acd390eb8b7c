"""Calls that newer versions spell differently: old torch_xla, torch.jit."""

"""The backends: what answers a program that asks for an accelerator."""

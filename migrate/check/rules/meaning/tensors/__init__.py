"""Hazards of single tensors: how they are moved, and in which mode they are computed."""

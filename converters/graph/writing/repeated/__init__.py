"""Repeated layers of a model: compiled once (`--scan`), computed again in the backward pass (`--remat`)."""

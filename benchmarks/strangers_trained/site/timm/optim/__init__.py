"""Optimizers: see `optim_factory`."""

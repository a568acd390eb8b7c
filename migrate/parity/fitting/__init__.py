"""Fitting: find the place of each torch weight in an existing Flax model, and prove it by running both."""

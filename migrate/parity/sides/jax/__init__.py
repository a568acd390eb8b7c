"""A Flax model or a JAX function as a side, in its own process."""

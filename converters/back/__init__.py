"""The parts of the way back from a Flax pytree to torch; `converters.reverse` has its functions."""

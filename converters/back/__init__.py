"""Parts of the conversion from a Flax pytree back to torch; `converters.reverse` has its functions."""

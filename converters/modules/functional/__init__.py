"""What the layers of `converters.modules` compute, as functions of arrays: torch's formulas in JAX."""

"""Functions of arrays behind the layers of `converters.modules`: torch's formulas in JAX."""

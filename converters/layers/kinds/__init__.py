"""Layer kinds, one file per kind or family: docstring, names and forward cases."""

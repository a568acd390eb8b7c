"""One file a kind (or a family of one layout): its docstring, its names and its forward cases."""

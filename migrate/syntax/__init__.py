"""Text and tree: a script's bytes, its libcst tree with positions, notebooks, origins of lines."""

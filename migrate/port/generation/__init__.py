"""Generation with a cache: `generate.py` of a port, and its proof."""

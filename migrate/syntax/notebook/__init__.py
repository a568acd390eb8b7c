"""Notebook as text, its code cells as one script, and the IPython syntax in them."""

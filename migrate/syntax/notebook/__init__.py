"""A notebook as text, its code cells as one script, and what in them is IPython's."""

"""What the names of `shims` and the patches have in common."""

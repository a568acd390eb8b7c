"""Code shared by the names of `shims` and the patches."""

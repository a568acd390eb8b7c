"""Reports as HTML: one file each, without scripts, nothing loaded from elsewhere."""

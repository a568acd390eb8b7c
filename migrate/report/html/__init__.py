"""Reports as HTML: one file each, nothing loaded from elsewhere, readable without scripts."""

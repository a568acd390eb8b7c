"""A script as a concrete syntax tree: read from disk, walked, its nodes placed."""

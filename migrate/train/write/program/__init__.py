"""Files that a written program carries as they are. They import nothing of this package."""

"""Files of a project, and the file that an import names."""

"""The files of a project, and which one an import names."""

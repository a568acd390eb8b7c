"""The files of a project, and what its steps run in other files."""

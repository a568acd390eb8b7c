"""Files of a project, and the code that its steps run in other files."""

"""Source of a port: statements, names, classes, loops."""

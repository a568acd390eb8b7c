"""From calls to source: statements, names, classes, loops."""

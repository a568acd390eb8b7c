"""Tools for editing: what remains of a statement, a branch or an import when parts of it are removed."""

"""Tools for edits: the remainder of a statement, a branch or an import after parts are removed."""

"""The means of editing: what stays of a statement, a branch, an import, when parts of it go."""

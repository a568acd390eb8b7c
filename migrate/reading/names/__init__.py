"""Names of a script and the values they are bound to."""

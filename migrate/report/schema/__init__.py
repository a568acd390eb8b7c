"""Results in forms that others have written down: SARIF, and the schemas of what --json prints."""

"""Results in forms that others have written down: SARIF, and the schema of the JSON of `migrate parity`."""

"""Mixed precision: autocast, gradient scalers, apex."""

"""Run of the original on its own machine, kept in a file for a proof elsewhere."""

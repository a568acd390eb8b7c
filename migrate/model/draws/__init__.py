"""Random numbers: what seeds them, which functions draw them, and whether replicas draw equal ones."""

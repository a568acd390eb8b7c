"""Random numbers: their seeds, the functions that draw them, and whether replicas draw equal ones."""

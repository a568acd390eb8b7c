"""How far a side is from the truth, and whether that is too far."""

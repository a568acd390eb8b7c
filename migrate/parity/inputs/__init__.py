"""The inputs of a comparison: made, read, drawn, the same for every side."""

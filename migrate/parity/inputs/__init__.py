"""Inputs of a comparison: created, read or drawn, and the same for every side."""

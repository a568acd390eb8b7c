"""Loops that become one graph."""

"""Operators that layers of networks are made of."""

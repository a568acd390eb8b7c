"""Operators that make arrays, arrange them, pick from them or reduce them."""

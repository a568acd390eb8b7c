"""Loops whose turns need each other."""

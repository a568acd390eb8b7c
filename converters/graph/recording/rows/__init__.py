"""Rows that a mask chooses."""

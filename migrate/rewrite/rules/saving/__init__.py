"""Saving: what is saved, where, and by which replica."""

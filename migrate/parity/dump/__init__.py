"""Dumps on disk: what a side computed, written, read and joined."""

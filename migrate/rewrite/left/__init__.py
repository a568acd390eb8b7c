"""Collect what remains to do by hand, in the script and in its rewritten form, in the order of work."""

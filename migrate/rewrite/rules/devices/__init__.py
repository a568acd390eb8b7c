"""The device: its name, its kind, whether there is one, and what is loaded onto it."""

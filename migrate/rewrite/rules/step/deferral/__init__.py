"""Logged values that stay on the device until something uses them (`--defer-reads`)."""

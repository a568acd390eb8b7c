"""Partition rules of a port: which axis of each weight is divided over which axis of a device mesh."""

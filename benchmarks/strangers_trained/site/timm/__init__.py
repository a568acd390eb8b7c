"""A stand-in for timm: the layers, losses, schedules and transforms that the projects take of it."""

__version__ = "0.3.2"

"""Models: see `layers` and `vision_transformer`."""

"""What may be on disk: each form of a checkpoint read lazily, without running code."""

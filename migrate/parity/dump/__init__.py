"""What one side computed, on disk: written, read, joined."""

"""What the original says: its names, its functions, its settings."""

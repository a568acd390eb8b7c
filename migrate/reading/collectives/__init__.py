"""What collectives leave pending, and who reads it."""

"""What replicas hold alike or apart: shares of the data, what is broadcast, saved, prepared, kept."""

"""What `migrate parity` shows on a terminal, and its JSON."""

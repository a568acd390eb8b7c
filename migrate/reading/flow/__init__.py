"""Order in which values are made, changed and read, and where the host waits for a value."""

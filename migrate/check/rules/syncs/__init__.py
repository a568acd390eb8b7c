"""Host syncs: the program waits for a value of the device (XLA2xx)."""

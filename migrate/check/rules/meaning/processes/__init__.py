"""What runs beside training in one process: handlers of signals, other frameworks (XLA84x)."""

"""Hazards of code that runs beside training in one process: signal handlers, other frameworks (XLA84x)."""

"""Memory and views (XLA6xx)."""

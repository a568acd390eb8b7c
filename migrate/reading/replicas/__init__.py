"""How replicas are started, and which code runs in which of them."""

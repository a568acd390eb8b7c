"""Start of the replicas, and the code that each of them runs."""

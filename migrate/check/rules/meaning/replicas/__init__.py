"""What raises or differs on XLA where several replicas work together (XLA8xx)."""

"""What ranks do together: collectives, where they meet, statistics of all their batches."""

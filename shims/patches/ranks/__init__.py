"""Patches of operations over all ranks: collectives, rendezvous, and statistics of all batches."""

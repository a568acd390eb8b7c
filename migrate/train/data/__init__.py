"""A torch DataLoader, from the record of a run to the source of `data.py`: the same order, without torch."""

"""A torch model as a side, in its own process."""

"""A torch optimizer and its schedules, from the record of a run to the source of `optimizer.py`, checked."""

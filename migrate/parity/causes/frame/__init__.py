"""Search for causes: replays of one layer of the truth, compared with the side's tensors."""

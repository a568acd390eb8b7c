"""A torch DataLoader, from the record of a run to the source of `data.py`: the same order, without torch.

`migrate train` does not use it yet: its programs keep the script's own DataLoader.
"""

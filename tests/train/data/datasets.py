"""Dataset of a script: examples of different lengths, and a `collate_fn` that pads them."""

import torch
from torch.nn.utils.rnn import pad_sequence


class Sentences(torch.utils.data.Dataset):
    """Sentence i has i % 7 + 2 tokens."""

    def __init__(self, size=23):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return torch.arange(index, index + index % 7 + 2)


def collate(sentences):
    ids = pad_sequence(sentences, batch_first=True, padding_value=50)
    mask = pad_sequence([torch.ones_like(s) for s in sentences], batch_first=True)
    return {"ids": ids, "mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


class Pairs(torch.utils.data.Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return torch.full((2,), float(index)), {"label": index, "name": f"n{index}"}

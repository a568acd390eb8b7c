"""The script's data and its order: torch's DataLoader hands over NumPy."""

import random

import torch
from torch.utils.data import DataLoader, Dataset

seed = 1337
batch_size, gradient_accumulation_steps, max_epochs = 8, 2, 3
chars = "#>0123456789+-="
stoi = {c: i for i, c in enumerate(chars)}


class Sums(Dataset):
    """Questions such as 12+7= and their answers; only the answer is learned."""

    def __init__(self, n, seed):
        rng = random.Random(seed)
        self.items = []
        for _ in range(n):
            a, b = rng.randrange(100), rng.randrange(100)
            op = rng.choice("+-")
            self.items.append((f"{a}{op}{b}=", f"{a + b if op == '+' else a - b}>"))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        question, answer = self.items[i]
        ids = [stoi[c] for c in question + answer]
        labels = [-100] * len(question) + ids[len(question) :]
        return torch.tensor(ids), torch.tensor(labels)


def collate(rows):
    longest = max(len(ids) for ids, _ in rows)
    x = torch.zeros(len(rows), longest, dtype=torch.long)
    y = torch.full((len(rows), longest), -100)
    mask = torch.zeros(len(rows), longest, dtype=torch.long)
    for i, (ids, labels) in enumerate(rows):
        x[i, : len(ids)] = ids
        y[i, : len(ids)] = labels
        mask[i, : len(ids)] = 1
    return x, y, mask


def train_loader():
    generator = torch.Generator().manual_seed(seed)
    return DataLoader(
        Sums(192, seed),
        batch_size,
        shuffle=True,
        collate_fn=collate,
        drop_last=True,
        generator=generator,
    )


def steps():
    """The micro-batches of each update, over all epochs."""
    loader = train_loader()
    for _ in range(max_epochs):
        micro = []
        for x, y, mask in loader:
            micro.append({"x": x.numpy(), "y": y.numpy(), "mask": mask.numpy()})
            if len(micro) == gradient_accumulation_steps:
                yield micro
                micro = []

"""torch modules that the tests of `migrate fit` name."""

from __future__ import annotations

import torch
from torch import nn


class Net(nn.Module):
    """A small classifier with statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(256, 512)
        self.norm = nn.BatchNorm1d(512)
        self.last = nn.Linear(512, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of (batch, 256)."""
        return self.last(torch.relu(self.norm(self.first(x))))


class Block(nn.Module):
    """Its wide value is kept for the gradients; what goes to the next one is an eighth of that."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(256, 2048)
        self.down = nn.Linear(2048, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of (batch, 256)."""
        return x + self.down(torch.relu(self.up(x)))


class Blocks(nn.Module):
    """A few of them."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of (batch, 256)."""
        for block in self.blocks:
            x = block(x)
        return x

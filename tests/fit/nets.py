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

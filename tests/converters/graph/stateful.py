"""Models whose forward changes the model itself."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Tracked(nn.Module):
    """A layer, and the running mean of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))
        self.mean: Tensor

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.lin(x - self.mean)
        if self.training:
            self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))  # kept
        return y


class TrackedByData(Tracked):
    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.lin(x - self.mean)
        if self.training:
            self.mean.data.lerp_(x.detach().mean(0), 0.1)
        return y


class TrackedAnew(Tracked):
    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.lin(x - self.mean)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return y


class TrackedAside(nn.Module):
    """A running mean that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.mean = nn.Linear(4, 4), torch.zeros(4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.lin(x - self.mean)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return y


class WarmedUp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin, self.steps = nn.Linear(4, 4), 0

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.steps += 1
        y: Tensor = self.lin(x) * min(1.0, 0.1 + self.steps / 10)
        return y


class Queue(nn.Module):
    """A list of earlier outputs, of which the next one is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.lin(x)
        for earlier in self.seen:
            y = y + 0.1 * earlier
        if self.training:
            self.seen.append(y.detach())
        return y


class Clamped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.lin.weight.clamp_(-0.1, 0.1)
        y: Tensor = self.lin(x)
        return y


class Counted(Tracked):
    """A mean that each call changes, in evaluation too."""

    def forward(self, x: Tensor) -> Tensor:
        self.mean += 1
        y: Tensor = self.lin(x)
        return y


class Watched(nn.Module):
    """What others look at, and no call reads."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.drop = nn.Linear(4, 4), nn.Dropout(0.1)
        self.last: Tensor | None = None
        self.calls = 0
        self.losses: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.drop(self.lin(x))
        self.last = y.detach()
        self.calls += 1
        self.losses.append(y.mean())
        return y


class Cached(nn.Module):
    """A table that is computed in the first call."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.table: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None:
            self.table = torch.arange(4.0, device=x.device)
        y: Tensor = self.lin(x + self.table)
        return y


class Remembering(nn.Module):
    """Sizes that are values of an input, after tensors were kept for others to look at."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.last: Tensor | None = None
        self.sums: list[Tensor] = []

    def forward(self, x: Tensor, sizes: Tensor) -> Tensor:
        self.last = self.lin(x).sum(0)
        self.sums.append(self.last)
        first, second = sizes.tolist()
        return self.last.view(first, second)

"""Models of which one line is recorded several times: calls of one function, turns of a loop."""

from __future__ import annotations

import torch
from torch import nn


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn pairs of numbers."""
    even, odd = x[..., 0::2].float(), x[..., 1::2].float()
    y = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1)
    return y.flatten(-2).type_as(x)


def halved(x: torch.Tensor) -> torch.Tensor:
    for _ in range(2):
        x = torch.tanh(x) * 0.5 + 1
    return x


class Calls(nn.Module):
    """Calls of a function on one line: two, by map, in a list, and one within the other."""

    def __init__(self, dim: int = 8, way: str = "two") -> None:
        super().__init__()
        self.fc = nn.Linear(dim, 3 * dim)
        self.way = way

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        q, k, v = self.fc(x).chunk(3, dim=-1)
        angle = torch.arange(q.shape[-1] // 2, device=x.device).float()
        cos, sin = angle.cos(), angle.sin()
        if self.way == "two":
            q, k = turned(q, cos, sin), turned(k, cos, sin)
        elif self.way == "map":
            q, k = map(lambda one: turned(one, cos, sin), (q, k))  # noqa: C417
        elif self.way == "list":
            q, k = [turned(one, cos, sin) for one in (q, k)]
        else:
            q = turned(turned(q, cos, sin), cos, sin)
        return q * k, halved(v)


class Expert(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


class Routed(nn.Module):
    """All experts over all rows, each weighted: by a slice, an index, or a chunk that grows."""

    def __init__(self, dim: int = 6, experts: int = 4, way: str = "slice") -> None:
        super().__init__()
        self.gate = nn.Linear(dim, 2 * experts if way == "two" else experts)
        self.experts = nn.ModuleList([Expert(dim) for _ in range(experts)])
        self.way = way

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.gate(x).softmax(-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            if self.way == "slice":
                out = out + weights[:, i : i + 1] * expert(x)
            elif self.way == "index":
                out = out + weights[:, i, None] * expert(x)
            else:
                out = out + weights[:, 2 * i : 2 * i + 2].sum(-1, keepdim=True) * expert(x)
        return out


class Uneven(nn.Module):
    """Weights whose places do not follow from the turn's number."""

    def __init__(self, dim: int = 6) -> None:
        super().__init__()
        self.gate = nn.Linear(dim, 5)
        self.experts = nn.ModuleList([Expert(dim) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.gate(x).softmax(-1)
        out = x
        for place, expert in zip((3, 0, 4), self.experts, strict=True):
            out = out + weights[:, place, None] * expert(x)
        return out

"""Models that agree with torch on torch_tpu, part from it, or need operators that it does not have."""

from __future__ import annotations

import torch
from torch import nn


class Pooled(nn.Module):
    """Equal values; torch_tpu 0.2.0 loses the gradient of `avg_pool1d`."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.pool = nn.AvgPool1d(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pool(self.first(x))


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 1.01 if x.device.type == "tpu" else x * 1.0


class Parting(nn.Module):
    """The layer `second` computes something else on a TPU."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(8, 8), Scaled(), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.third(self.second(self.first(x)))


class Missing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        square = self.first(x).mean(1)
        whole = square.T @ square + torch.eye(8, dtype=x.dtype, device=x.device)
        factor = torch.linalg.cholesky(whole)
        image = factor[None, None]
        return nn.functional.interpolate(image, size=(2, 2), mode="bilinear", antialias=True)


class Dropping(nn.Module):
    """A model that draws in training."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.drop(torch.relu(self.first(x))))

"""Layers with timm's interface."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.init import trunc_normal_

__all__ = ["DropPath", "to_2tuple", "trunc_normal_"]


def to_2tuple(value: Any) -> tuple[Any, Any]:
    """Return a pair."""
    return tuple(value) if isinstance(value, tuple | list) else (value, value)


class DropPath(nn.Module):
    """Leave out a residual branch for some examples of a batch, while training."""

    def __init__(self, drop_prob: float = 0.0) -> None:
        """With this probability."""
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return `x` with zeros for the examples that are dropped, the others scaled up."""
        if not self.drop_prob or not self.training:
            return x
        kept = 1 - self.drop_prob
        mask = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(kept)
        return x * mask / kept

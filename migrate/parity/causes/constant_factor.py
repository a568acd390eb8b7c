"""A constant factor too much or too little."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import nn

from migrate.parity.causes.frame.pattern import Array, Example, Pattern, Variant, loaded, normal
from migrate.parity.causes.frame.scene import Scene


class _Truth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.6593))

    def forward(self, similarity: torch.Tensor) -> torch.Tensor:
        return similarity * self.scale.exp()


class _Faulty(_Truth):
    def forward(self, similarity: torch.Tensor) -> torch.Tensor:
        return similarity * self.scale


class ConstantFactor(Pattern):
    """The output has a constant factor that the truth's has not.

    **What it is.** A temperature, a logit scale, a residual multiplier, a mean in the place of a sum: all
    of the output is the truth's times one number.

    **What to do.** Look for that number, its root, or its logarithm, among the configuration and the
    parameters.
    """

    name = "constant-factor"
    rank = 3
    examples = (
        Example(_Truth, lambda twin: loaded(_Faulty(), twin), normal(4, 16), "constant factor"),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield the factor that fits best."""
        yield Variant("{side}'s tensor is the truth's with a constant factor", adjust=_fitted)


def _fitted(given: Array, mine: Array) -> Array | None:
    if given.shape != mine.shape or given.size < 8 or not np.isfinite(mine).all():
        return None
    norm = float((given * given).sum())
    factor = float((given * mine).sum()) / norm if norm else 0.0
    return factor * given if factor > 0 else None

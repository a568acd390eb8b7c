"""Dropout is left on."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import nn

from migrate.parity.causes.frame.pattern import Array, Example, Pattern, Variant, normal
from migrate.parity.causes.frame.scene import Scene


def _truth() -> nn.Module:
    return nn.Dropout(0.1)


class _Faulty(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x, 0.1, training=True)


class DropoutOn(Pattern):
    """Dropout is left on.

    **What it is.** Some values are zero, all others the truth's divided by one common share: the layer is
    in training mode. `F.dropout` has `training=True` by default, whatever the mode of the model; Flax's
    `Dropout` needs `deterministic=True`.

    **What to do.** `F.dropout(x, p, self.training)`; `deterministic=not train`, `model.eval()` in nnx.
    """

    name = "dropout-on"
    rank = 0
    examples = (Example(_truth, lambda twin: _Faulty(), normal(16, 64), "dropout is left on"),)

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield the output with zeros where the side has them, and the factor of the others."""
        yield Variant("dropout is left on in {side}", adjust=_dropped)


def _dropped(given: Array, mine: Array) -> Array | None:
    if given.shape != mine.shape or given.dtype.kind != "f":
        return None
    zeros = (mine == 0) & (given != 0)
    share = zeros.mean() / max((given != 0).mean(), 1e-9)
    if not 0.005 < share < 0.95:
        return None
    kept = np.where(zeros, 0.0, given)
    factor = float((kept * mine).sum() / (kept * kept).sum())
    # What is kept is divided by 1 - p, and about p of all is dropped.
    if abs((1 - 1 / factor) - share) > 0.02 + 4 * np.sqrt(share * (1 - share) / given.size):
        return None
    return factor * kept

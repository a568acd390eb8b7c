"""An image that is normalised otherwise."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import numpy as np
import torch
from torch import nn

from migrate.parity.causes.frame.pattern import Array, Example, Pattern, Variant, loaded, normal
from migrate.parity.causes.frame.scene import Scene


class _Truth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        mean = torch.tensor([0.485, 0.456, 0.406], dtype=image.dtype)
        std = torch.tensor([0.229, 0.224, 0.225], dtype=image.dtype)
        return self.conv((image - mean[:, None, None]) / std[:, None, None])


class _Faulty(_Truth):
    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.conv(2 * image - 1)


class InputNormalisation(Pattern):
    """An image that is normalised otherwise.

    **What it is.** One model takes 0 to 255, another 0 to 1, -1 to 1, or ImageNet's mean and deviation
    taken off. What a side gives its first layer is then, channel by channel, a multiple of what the truth
    gives, plus a number.

    **What to do.** Take the preprocessing that the weights were trained with: `mean`, `std` and
    `rescale_factor` of the image processor's configuration.
    """

    name = "input-normalisation"
    rank = 2
    examples = (
        Example(
            _Truth,
            lambda twin: loaded(_Faulty(), twin),
            normal(2, 3, 8, 8, scale=0.2, mean=0.5),
            "is normalised otherwise",
            layer="conv",
            locally=False,
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield an image whose channels have the factor and the offset that fit best."""
        for axis in (1, -1):
            text = "the image is normalised otherwise in {side}: each channel has a factor and an offset"
            yield Variant(f"{text} (axis {axis})", adjust=partial(_fitted, axis))


def _fitted(axis: int, given: Array, mine: Array) -> Array | None:
    if given.ndim not in (4, 5) or given.shape != mine.shape or given.shape[axis] not in (1, 3, 4):
        return None
    if given.size // given.shape[axis] < 32 or not np.isfinite(mine).all():
        return None
    x, y = (np.moveaxis(one, axis, 0).reshape(given.shape[axis], -1) for one in (given, mine))
    x_mean, y_mean = x.mean(1, keepdims=True), y.mean(1, keepdims=True)
    spread = ((x - x_mean) ** 2).sum(1, keepdims=True)
    factor = ((x - x_mean) * (y - y_mean)).sum(1, keepdims=True) / spread
    moved = np.moveaxis(given, axis, 0)
    fitted = factor * (x - x_mean) + y_mean
    return np.moveaxis(fitted.reshape(moved.shape), 0, axis)

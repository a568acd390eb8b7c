"""Red, green and blue, or blue, green and red."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch
from torch import nn

from migrate.parity.causes.frame.changes import weight
from migrate.parity.causes.frame.pattern import Array, Example, Pattern, Variant, normal
from migrate.parity.causes.frame.scene import Scene


class _Truth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.conv(image)


class _Faulty(_Truth):
    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.conv(image.flip(1))


def _faulty(twin: nn.Module) -> nn.Module:
    twin.__class__ = _Faulty
    return twin


def _reversed(twin: nn.Module) -> nn.Module:
    twin.conv.weight.data = twin.conv.weight.data.flip(1)
    return twin


class ChannelOrder(Pattern):
    """The colours come in the reverse order.

    **What it is.** OpenCV and Caffe's models have blue, green, red; PIL, torchvision and TensorFlow red,
    green, blue.

    **What to do.** Reverse the channels of the image, or of the first kernel, in one place only.
    """

    name = "channel-order"
    rank = 1
    examples = (
        Example(_Truth, _faulty, normal(2, 3, 8, 8), "reverse order", layer="conv", locally=False),
        Example(_Truth, _reversed, normal(2, 3, 8, 8), "reverse order", layer="conv"),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield first kernels and images with their channels reversed."""
        text = "the colours come in the reverse order in {side}"
        for axis in (1, -1):
            yield Variant(f"{text} (axis {axis})", adjust=partial(_flipped, axis))
        for part, name in scene.weights(_of_colours):
            yield Variant(
                f"{text} ({name} of {part.name})",
                partial(weight, part.module, name, partial(torch.flip, dims=[1])),
            )


def _of_colours(_module: nn.Module, _name: str, tensor: torch.Tensor) -> bool:
    return tensor.ndim in (4, 5) and tensor.shape[1] == 3


def _flipped(axis: int, given: Array, _mine: Array) -> Array | None:
    image = given.ndim in (4, 5) and given.shape[axis] == 3
    order = [slice(None)] * given.ndim
    order[axis] = slice(None, None, -1)
    return given[tuple(order)] if image else None

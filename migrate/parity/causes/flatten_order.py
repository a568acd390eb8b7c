"""Channels first or last when an image is flattened."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import nn

from migrate.parity.causes.frame.changes import weight
from migrate.parity.causes.frame.functions import FunctionCall
from migrate.parity.causes.frame.pattern import Example, Pattern, Variant, normal
from migrate.parity.causes.frame.scene import Scene

_NAMES = ("flatten", "reshape", "view")


class _Truth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4 * 6 * 6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.flatten(self.conv(x), 1))


class _Faulty(_Truth):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.conv(x).permute(0, 2, 3, 1).flatten(1))


def _faulty(twin: nn.Module) -> nn.Module:
    twin.__class__ = _Faulty
    return twin


def _spoiled(twin: nn.Module) -> nn.Module:
    kernel = twin.head.weight.data
    twin.head.weight.data = kernel.reshape(5, 4, 36).transpose(1, 2).reshape(5, 144)
    return twin


class FlattenOrder(Pattern):
    """An image is flattened with its channels last instead of first.

    **What it is.** torch flattens (channels, height, width), a Flax model (height, width, channels): the
    features of the next Dense come in another order, and its kernel from torch fits the first only.

    **What to do.** Transpose to channels first before the flatten in Flax, or reorder the kernel's rows
    when it is converted.
    """

    name = "flatten-order"
    rank = 0
    examples = (
        Example(
            _Truth,
            _faulty,
            normal(2, 3, 8, 8),
            "with its channels last",
            layer="head",
            locally=False,
        ),
        Example(_Truth, _spoiled, normal(2, 3, 8, 8), "is for channels last", layer="head"),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield flattens with channels moved to the end, and from the end to the front."""
        for where, change in scene.replaced(lambda: dict.fromkeys(_NAMES, _last)):
            yield Variant(
                f"{{side}} flattens with its channels last, the truth with them first{where}",
                change,
            )
        for where, change in scene.replaced(lambda: dict.fromkeys(_NAMES, _first)):
            yield Variant(
                f"{{side}} flattens with its channels first, the truth with them last{where}",
                change,
            )
        for where, change in scene.replaced(lambda: dict.fromkeys(_NAMES, _columns)):
            yield Variant(
                f"{{side}} counts pixels column by column, the truth row by row{where}", change
            )
        for part in scene.parts:
            for channels in _channels(scene, part.module):
                for first, words in (
                    (False, "channels last, the truth's first"),
                    (True, "channels first, the truth's last"),
                ):
                    change = partial(
                        weight, part.module, "weight", partial(_columns_moved, channels, first)
                    )
                    yield Variant(
                        f"the kernel of {part.name} in {{side}} is for {words} ({channels} channels)",
                        change,
                    )


def _channels(scene: Scene, module: Any) -> list[int]:
    """Numbers of channels that an image may have that was flattened for this layer."""
    if not isinstance(module, nn.Linear):
        return []
    found = {one.out_channels for one in scene.model.modules() if hasattr(one, "out_channels")}
    return sorted(n for n in found if 1 < n < module.in_features and module.in_features % n == 0)


def _columns_moved(channels: int, first: bool, tensor: torch.Tensor) -> torch.Tensor:
    split = tensor.unflatten(1, (-1, channels) if first else (channels, -1))
    return split.transpose(1, 2).flatten(1)


def _flattens(call: FunctionCall, result: Any) -> bool:
    x = call.args[0]
    return x.ndim in (3, 4, 5) and result.ndim == 2 and result.shape[0] == x.shape[0]


def _last(call: FunctionCall) -> Any:
    result = call.run()
    return call.args[0].movedim(1, -1).reshape(result.shape) if _flattens(call, result) else result


def _first(call: FunctionCall) -> Any:
    result = call.run()
    return call.args[0].movedim(-1, 1).reshape(result.shape) if _flattens(call, result) else result


def _columns(call: FunctionCall) -> Any:
    """Height and width of (…, height, width) exchanged where they become one axis."""
    x, result = call.args[0], call.run()
    one = x.ndim == result.ndim + 1 and result.shape[-1] == x.shape[-1] * x.shape[-2]
    return x.transpose(-1, -2).reshape(result.shape) if one else result

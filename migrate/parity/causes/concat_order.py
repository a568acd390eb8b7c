"""Tensors joined in another order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from migrate.parity.causes.frame.functions import FunctionCall
from migrate.parity.causes.frame.pattern import Example, Pattern, Variant, loaded, normal
from migrate.parity.causes.frame.scene import Scene

_NAMES = ("cat", "concat", "concatenate", "stack")


class _Truth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.skip, self.deep, self.out = nn.Linear(8, 6), nn.Linear(8, 6), nn.Linear(12, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.cat([self.skip(x), self.deep(x)], -1))


class _Faulty(_Truth):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skip, deep = self.skip(x), self.deep(x)
        return self.out(torch.cat([deep, skip], -1))


class ConcatOrder(Pattern):
    """Tensors are joined in another order.

    **What it is.** The skip of a U-Net is put first instead of last, the class token behind the patches,
    sin before cos: shapes are equal, the next kernel's rows are not.

    **What to do.** Join in the order that the kernel was trained for.
    """

    name = "concat-order"
    rank = 0
    examples = (
        Example(
            _Truth,
            lambda twin: loaded(_Faulty(), twin),
            normal(4, 8),
            "joined in the reverse order",
            layer="out",
            locally=False,
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield the reverse order."""
        for where, change in scene.replaced(lambda: dict.fromkeys(_NAMES, _reversed)):
            yield Variant(f"tensors are joined in the reverse order in {{side}}{where}", change)


def _reversed(call: FunctionCall) -> Any:
    return call.but(0, "tensors", tuple(reversed(call.get(0, "tensors")))).run()

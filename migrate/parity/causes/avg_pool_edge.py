"""Whether padding counts in an average pool."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from migrate.parity.causes.frame.functions import FunctionCall
from migrate.parity.causes.frame.pattern import Example, Pattern, Variant, normal
from migrate.parity.causes.frame.scene import Scene

_NAMES = ("avg_pool1d", "avg_pool2d", "avg_pool3d")


def _truth() -> nn.Module:
    return nn.AvgPool2d(3, stride=2, padding=1)


def _faulty(twin: nn.Module) -> nn.Module:
    twin.count_include_pad = False
    return twin


class AvgPoolEdge(Pattern):
    """Whether padded zeros count in an average pool.

    **What it is.** At the edges torch divides by the size of the window by default, padding included;
    TensorFlow divides by the number of real pixels. Flax's `avg_pool` has both, and includes them by
    default.

    **What to do.** `count_include_pad` says it, in both.
    """

    name = "avg-pool-edge"
    rank = 0
    examples = (Example(_truth, _faulty, normal(2, 3, 8, 8), "does not count padded zeros"),)

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield the other way."""
        for where, change in scene.replaced(lambda: dict.fromkeys(_NAMES, _other)):
            does = all(call.get(5, "count_include_pad", True) for call in scene.calls(*_NAMES))
            words = "does not count padded zeros" if does else "counts padded zeros"
            yield Variant(f"{{side}} {words} in the average{where}", change)

    def differs(self, truth: Mapping[str, Any], side: Mapping[str, Any]) -> str:
        """Say that the setting differs."""
        a, b = truth.get("count_include_pad"), side.get("count_include_pad")
        return (
            f"{{side}} has count_include_pad={b}, the truth {a}"
            if None not in (a, b) and a != b
            else ""
        )


def _other(call: FunctionCall) -> Any:
    return call.but(5, "count_include_pad", not call.get(5, "count_include_pad", True)).run()

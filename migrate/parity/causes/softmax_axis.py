"""Softmax over another axis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from torch import nn

from migrate.parity.causes.frame.functions import FunctionCall, Handler
from migrate.parity.causes.frame.pattern import Example, Pattern, Variant, normal
from migrate.parity.causes.frame.scene import Scene

_NAMES = ("softmax", "log_softmax", "softmin")


def _truth() -> nn.Module:
    return nn.Softmax(dim=1)


def _faulty(twin: nn.Module) -> nn.Module:
    return nn.Softmax(dim=-1)


class SoftmaxAxis(Pattern):
    """Softmax over another axis.

    **What it is.** `jax.nn.softmax` goes over the last axis by default; torch's without `dim` guesses (1
    for two and for four axes, 0 for one and for three). With channels last the axis of the channels is
    another one.

    **What to do.** Give the axis on both sides, and move it with the layout.
    """

    name = "softmax-axis"
    rank = 0
    examples = (
        Example(
            _truth, _faulty, normal(2, 5, 7), "takes the softmax over axis 2, the truth over 1"
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield all other axes."""
        found = {
            (call.get(1, "dim") % call.args[0].ndim, call.args[0].ndim) for call in _calls(scene)
        }
        for old, count in sorted(found):
            for new in (axis for axis in range(count) if axis != old):
                for where, change in scene.replaced(partial(_over, new)):
                    yield Variant(
                        f"{{side}} takes the softmax over axis {new}, the truth over {old}{where}",
                        change,
                    )


def _calls(scene: Scene) -> list[FunctionCall]:
    return [call for call in scene.calls(*_NAMES) if isinstance(call.get(1, "dim"), int)]


def _over(axis: int) -> Mapping[str, Handler]:
    def handle(call: FunctionCall) -> Any:
        return call.but(1, "dim", axis).run()

    return dict.fromkeys(_NAMES, handle)

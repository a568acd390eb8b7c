"""Another slope of leaky_relu or elu."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from torch import nn

from migrate.parity.causes.frame.functions import FunctionCall, Handler
from migrate.parity.causes.frame.pattern import Example, Pattern, Variant, normal
from migrate.parity.causes.frame.scene import Scene

_USUAL = (0.01, 0.1, 0.2, 0.3, 0.5, 1.0)
# Function: (the argument's name, its default).
_FUNCTIONS = {"leaky_relu": ("negative_slope", 0.01), "elu": ("alpha", 1.0), "celu": ("alpha", 1.0)}


def _truth() -> nn.Module:
    return nn.LeakyReLU(0.2)


def _faulty(twin: nn.Module) -> nn.Module:
    return nn.LeakyReLU()


class ActivationSlope(Pattern):
    """Another slope of leaky_relu, or alpha of elu.

    **What it is.** The slope below zero is 0.01 in torch's and JAX's `leaky_relu`, 0.2 in TensorFlow's
    (and in most GANs), 0.3 in Keras's layer.

    **What to do.** Give it on both sides.
    """

    name = "activation-slope"
    rank = 0
    examples = (Example(_truth, _faulty, normal(4, 16), "has negative_slope 0.01, the truth 0.2"),)

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield the usual values."""
        for name, (argument, default) in _FUNCTIONS.items():
            for old in sorted({call.get(1, argument, default) for call in scene.calls(name)}):
                for new in (one for one in _USUAL if one != old):
                    for where, change in scene.replaced(partial(_slope, name, argument, new)):
                        yield Variant(
                            f"{{side}} has {argument} {new:g}, the truth {old:g}{where}", change
                        )

    def differs(self, truth: Mapping[str, Any], side: Mapping[str, Any]) -> str:
        """Say that they differ."""
        a, b = truth.get("negative_slope"), side.get("negative_slope")
        return (
            f"{{side}} has negative_slope {b}, the truth {a}"
            if None not in (a, b) and a != b
            else ""
        )


def _slope(name: str, argument: str, value: float) -> Mapping[str, Handler]:
    def handle(call: FunctionCall) -> Any:
        return call.but(1, argument, value).run()

    return {name: handle}

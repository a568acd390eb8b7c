"""Another activation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import nn

from migrate.parity.causes.frame.functions import FunctionCall, Handler
from migrate.parity.causes.frame.pattern import Example, Pattern, Variant, normal
from migrate.parity.causes.frame.scene import Scene


class _Truth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.act: nn.Module = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.act(self.up(x)))


def _faulty(twin: nn.Module) -> nn.Module:
    twin.act = nn.SiLU()
    return twin


_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu (tanh)": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "elu": F.elu,
    "selu": F.selu,
    "relu6": F.relu6,
    "leaky_relu": F.leaky_relu,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "mish": F.mish,
    "softplus": F.softplus,
    "squared relu": lambda x: F.relu(x).square(),
    "no activation": lambda x: x,
}


class Activation(Pattern):
    """Another activation, or none.

    **What it is.** The port has another function where the original has, say, `silu`: "swish" is `silu`,
    "gelu" has three forms (gelu-form), a configuration's `hidden_act` was not read, or a layer's
    activation is an argument that was left out.

    **What to do.** Take the function that the configuration of the weights names.
    """

    name = "activation"
    rank = 1
    examples = (Example(_Truth, _faulty, normal(4, 8), "has silu instead of relu", layer="act"),)

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield each other function in the place of each that is called."""
        for old in _FUNCTIONS:
            for new, function in _FUNCTIONS.items():
                if new != old:
                    for where, change in scene.replaced(partial(_instead, old, function)):
                        yield Variant(f"{{side}} has {new} instead of {old}{where}", change)


def _instead(old: str, function: Callable[[Any], Any]) -> Mapping[str, Handler]:
    def handle(call: FunctionCall) -> Any:
        return function(call.args[0])

    return {old: handle}

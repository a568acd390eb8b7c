"""Another form of gelu."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from migrate.parity.causes.frame.functions import FunctionCall, Handler
from migrate.parity.causes.frame.pattern import Example, Pattern, Variant, normal
from migrate.parity.causes.frame.scene import Scene


class _Truth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.form = "none"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.gelu(self.up(x), approximate=self.form))


def _faulty(twin: nn.Module) -> nn.Module:
    twin.form = "tanh"
    return twin


def _gelu() -> nn.Module:
    return nn.GELU(approximate="tanh")


def _exact(twin: nn.Module) -> nn.Module:
    return nn.GELU()


_FORMS: dict[str, Callable[[Any], Any]] = {
    "exact (erf)": lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))),
    "tanh": lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "sigmoid (x · σ(1.702 x))": lambda x: x * torch.sigmoid(1.702 * x),
}


class GeluForm(Pattern):
    """Another form of gelu: exact, tanh, or sigmoid.

    **What it is.** torch's `gelu` is the exact one (erf) by default, JAX's `jax.nn.gelu` and
    `flax.linen.gelu` the tanh form; CLIP and GPT-J's "quick" gelu is `x · σ(1.702 x)`. The first two
    differ by 4e-4 at most, which no test by eye sees.

    **What to do.** `approximate=False` in JAX, or `approximate="tanh"` in torch: as the weights were
    trained. In Hugging Face configurations "gelu" is the exact one, "gelu_new" and "gelu_pytorch_tanh"
    the tanh form.
    """

    name = "gelu-form"
    rank = 0
    examples = (
        Example(_Truth, _faulty, normal(4, 8), "has the tanh form", layer="down", locally=False),
        Example(_gelu, _exact, normal(4, 16), "has the exact (erf) form"),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield the other forms, of `gelu` and of those written out with tanh and erf."""
        for form, function in _FORMS.items():
            for where, change in scene.replaced(partial(_only, function)):
                yield Variant(f"{{side}}'s gelu has the {form} form{where}", change)

    def differs(self, truth: Mapping[str, Any], side: Mapping[str, Any]) -> str:
        """Say that `approximate` differs."""
        a, b = (_form(settings.get("approximate")) for settings in (truth, side))
        return (
            f"{{side}}'s gelu has the {b} form, the truth's the {a} form"
            if a and b and a != b
            else ""
        )


def _only(function: Callable[[Any], Any]) -> Mapping[str, Handler]:
    def handle(call: FunctionCall) -> Any:
        return function(call.args[0])

    return {"gelu": handle}


def _form(value: Any) -> str:
    return {"none": "exact", False: "exact", "tanh": "tanh", True: "tanh"}.get(value, "")

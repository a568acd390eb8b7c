"""A bias that is not added."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from migrate.parity.causes.frame.changes import several, weight
from migrate.parity.causes.frame.pattern import Example, Pattern, Variant, normal
from migrate.parity.causes.frame.scene import Scene


def _truth() -> nn.Module:
    return nn.Linear(8, 16)


def _faulty(twin: nn.Module) -> nn.Module:
    twin.bias = None
    return twin


class MissingBias(Pattern):
    """A bias that is not added, or was not loaded.

    **What it is.** The layer has `use_bias=False`, or its bias kept its initial zeros because the name in
    the checkpoint is another one. LSTM and GRU of torch have two biases, Flax's have one: the sum, or one
    is lost.

    **What to do.** Compare the names of the parameters on both sides (`migrate weights plan`).
    """

    name = "missing-bias"
    rank = 0
    examples = (Example(_truth, _faulty, normal(4, 8), "adds no bias"),)

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield each bias alone, and all of a module, as zeros."""
        found: dict[str, list[tuple[Any, str]]] = {}
        for part, name in scene.weights(_is_bias):
            found.setdefault(part.name, []).append((part.module, name))
        for where, biases in found.items():
            for some in [biases] if len(biases) == 1 else [[one] for one in biases] + [biases]:
                names = ", ".join(name for _, name in some)
                yield Variant(f"{{side}} adds no bias in {where} ({names})", partial(_zeroed, some))

    def differs(self, truth: Mapping[str, Any], side: Mapping[str, Any]) -> str:
        """Say that one has a bias, and the other not."""
        a, b = (
            next((s[n] for n in ("use_bias", "bias") if isinstance(s.get(n), bool)), None)
            for s in (truth, side)
        )
        return f"{{side}} has bias {b}, the truth {a}" if None not in (a, b) and a != b else ""


def _is_bias(_module: Any, name: str, tensor: torch.Tensor) -> bool:
    return ("bias" in name or name == "beta") and bool((tensor != 0).any())


def _zeroed(some: list[tuple[Any, str]]) -> Any:
    return several(weight(module, name, torch.zeros_like) for module, name in some)

"""A norm's weight that is not applied."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from migrate.parity.causes.frame.changes import weight
from migrate.parity.causes.frame.pattern import Example, Pattern, Variant, normal
from migrate.parity.causes.frame.scene import Scene


def _truth() -> nn.Module:
    norm = nn.LayerNorm(16)
    nn.init.uniform_(norm.weight, 0.5, 1.5)
    return norm


def _faulty(twin: nn.Module) -> nn.Module:
    nn.init.ones_(twin.weight)
    return twin


class MissingScale(Pattern):
    """A norm's weight, or the scale of a branch, that is not applied, or was not loaded.

    **What it is.** The norm has `use_scale=False`, or its weight kept its initial ones: torch calls it
    `weight`, Flax `scale`, TensorFlow `gamma`, and a loader that is not strict passes over it. The layer
    scale of ConvNeXt and CaiT goes the same way.

    **What to do.** Compare the names of the parameters on both sides (`migrate weights plan`), and load
    strictly.
    """

    name = "missing-scale"
    rank = 0
    examples = (Example(_truth, _faulty, normal(4, 16), "without its weight"),)

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield each norm with ones."""
        for part, name in scene.weights(_is_scale):
            text = f"{part.name} is applied without its {name} in {{side}} (ones)"
            yield Variant(text, partial(weight, part.module, name, torch.ones_like))

    def differs(self, truth: Mapping[str, Any], side: Mapping[str, Any]) -> str:
        """Say that one has a scale, and the other not."""
        a = next((truth[n] for n in ("elementwise_affine", "affine") if n in truth), None)
        b = side.get("use_scale")
        return (
            f"{{side}} has use_scale={b}, the truth affine={a}"
            if None not in (a, b) and a != b
            else ""
        )


def _is_scale(module: Any, name: str, tensor: torch.Tensor) -> bool:
    norm = "norm" in type(module).__name__.lower() and name == "weight"
    said = any(word in name.lower() for word in ("gamma", "scale", "lambda"))
    return (norm or said) and tensor.ndim <= 1 and bool((tensor != 1).any())

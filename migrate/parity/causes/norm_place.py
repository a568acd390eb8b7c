"""A norm before or after."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import numpy as np
import torch
from torch import nn

from migrate.parity.causes.frame.pattern import Array, Example, Pattern, Variant, loaded, normal
from migrate.parity.causes.frame.scene import Scene


class _Truth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.fc(self.norm(x))


class _Faulty(_Truth):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.fc(x))


class NormPlace(Pattern):
    """A norm stands in another place: before a block, or after its sum.

    **What it is.** The first transformer norms after the sum (post-norm: BERT,
    `nn.TransformerEncoderLayer` by default), GPT-2, ViT and Llama before the block (pre-norm), Gemma 2
    both. A layer is then given what goes into the norm instead of what comes out of it, or the reverse.

    **What to do.** `norm_first` of torch's layers; move the norm.
    """

    name = "norm-place"
    rank = 0
    examples = (
        Example(
            _Truth,
            lambda twin: loaded(_Faulty(), twin),
            normal(4, 8),
            "what goes into norm",
            layer="fc",
            locally=False,
        ),
        Example(
            _Faulty,
            lambda twin: loaded(_Truth(), twin),
            normal(4, 8),
            "what comes out of norm",
            layer="fc",
            locally=False,
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield for each norm inside what goes in for what comes out, and the reverse."""
        made = {name: tensor for name, number, path, tensor in scene.replay.outputs() if not path}
        for spot, tensor in scene.replay.truth.items():
            name = spot.layer
            if name is None or name not in made or "norm" not in _kind(scene, name):
                continue
            before, after = tensor.numpy(), made[name].numpy()
            yield Variant(
                f"{{side}} has what goes into {name} {{where}}, the truth what comes out of it",
                adjust=partial(_instead, after, before),
            )
            yield Variant(
                f"{{side}} has what comes out of {name} {{where}}, the truth something else",
                adjust=partial(_unlike, after),
            )


def _kind(scene: Scene, name: str) -> str:
    return type(scene.replay.inside[name]).__name__.lower()


def _instead(old: Array, new: Array, given: Array, _mine: Array) -> Array:
    same = old.shape == given.shape and np.allclose(old, given, rtol=1e-5, atol=1e-7)
    return new if same and new.shape == given.shape else given


def _unlike(new: Array, given: Array, _mine: Array) -> Array:
    return new if new.shape == given.shape else given

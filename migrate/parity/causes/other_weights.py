"""Weights that are others altogether."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import numpy as np
from torch import nn

from migrate.parity.causes.frame.pattern import Array, Example, Pattern, Variant, normal
from migrate.parity.causes.frame.scene import Scene


def _truth() -> nn.Module:
    return nn.Linear(8, 12)


def _faulty(twin: nn.Module) -> nn.Module:
    return nn.Linear(8, 12)  # never loaded


class OtherWeights(Pattern):
    """The weights of a dense layer are others.

    **What it is.** The output is a linear function of the truth's input, as it should be, but of no
    weights that the truth has: the layer kept its initial ones, because the checkpoint has no key for it
    (a tied head), or is of another training step.

    **What to do.** Load strictly, and compare the weights of this layer (`migrate weights verify`).
    """

    name = "other-weights"
    rank = 4
    examples = (
        Example(_truth, _faulty, normal(6, 8, 8), "is linear in its input, with other weights"),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield the linear function of the input that fits the side's output best."""
        if not isinstance(scene.target, nn.Linear):
            return
        given = next(scene.given(), None)
        if given is None:
            return
        x = given[1].reshape(-1, given[1].shape[-1]).numpy()
        if len(x) < 2 * (x.shape[1] + 1):
            return
        shared = [n for n, m in scene.model.named_modules() if _shares(m, scene.target)]
        words = f"; in the truth they are tied to {shared[0]}'s" if shared else ""
        text = f"{scene.name or 'the layer'} is linear in its input, with other weights in {{side}}{words}"
        yield Variant(text, adjust=partial(_fitted, x))


def _shares(module: nn.Module, target: nn.Module) -> bool:
    return module is not target and getattr(module, "weight", None) is target.weight


def _fitted(x: Array, given: Array, mine: Array) -> Array | None:
    if not np.isfinite(mine).all() or mine.shape != given.shape:
        return None
    columns = np.concatenate([x, np.ones((len(x), 1))], 1)
    y = mine.reshape(len(x), -1)
    found, _, rank, _ = np.linalg.lstsq(columns, y, rcond=None)
    return (columns @ found).reshape(mine.shape) if rank < len(x) / 1.5 else None

"""Comparison of the outputs of both models, whatever their names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from migrate.parity.fitting.sources import EXACT

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ComparedOutputs:
    """Paired outputs of both models on one input.

    Attributes:
        apart: the largest relative L2 of a pair; None: there is no pair.
        pairs: torch's path → Flax's.
        alone: outputs that only one model has, in words.
    """

    apart: float | None
    pairs: Mapping[str, str]
    alone: tuple[str, ...] = ()


def compare_outputs(truth: Mapping[str, Array], mine: Mapping[str, Array]) -> ComparedOutputs:
    """Pair the outputs and measure their distance.

    Outputs with the same names belong together, if their sizes agree. If the names differ, outputs
    with the same values belong together. If two outputs of one size are left, one on each side, the models
    differ there. Integers alone (the likeliest token) prove nothing about the weights.
    """
    theirs, ours = _named(truth), _named(mine)
    pairs: dict[str, str] = {}
    if theirs.keys() == ours.keys():
        pairs = {name: name for name in theirs if _may_be(theirs[name], ours[name])}
        pairs = pairs or {name: name for name in theirs}
    else:
        for limit in (EXACT, math.inf):
            for name in ours:
                near = {
                    _distance(array, ours[name]): other
                    for other, array in theirs.items()
                    if other not in pairs and name not in pairs.values()
                }
                best = min(near, default=math.inf)
                if best <= limit and best < math.inf:
                    pairs[near[best]] = name
    distances = [_distance(theirs[other], ours[name]) for other, name in pairs.items()]
    floating = any(theirs[other].dtype.kind == "f" for other in pairs)
    alone = [f"torch's output {name}" for name in theirs if name not in pairs]
    alone += [f"Flax's output {name}" for name in ours if name not in pairs.values()]
    return ComparedOutputs(max(distances) if floating else None, pairs, tuple(alone))


def _named(outputs: Mapping[str, Array]) -> dict[str, Array]:
    """Outputs with values; a single output has the name "0", whatever its own name."""
    kept = {name or "0": array for name, array in outputs.items() if array.size}
    return {"0": next(iter(kept.values()))} if len(kept) == 1 else kept


def _distance(truth: Array, mine: Array) -> float:
    """Relative L2, channels first or last; infinite where they cannot be the same."""
    if (truth.dtype.kind == "f") != (mine.dtype.kind == "f"):
        return math.inf
    if truth.shape == mine.shape:
        return _relative(truth, mine)
    rank = truth.ndim
    moved = [
        truth.transpose(0, *range(2, rank), 1),
        truth.transpose(0, rank - 1, *range(1, rank - 1)),
    ]
    fitting = [
        candidate for candidate in (moved if rank > 2 else ()) if candidate.shape == mine.shape
    ]
    if not fitting and _sides(truth) == _sides(mine):
        fitting = [truth.reshape(mine.shape)]
    return min((_relative(candidate, mine) for candidate in fitting), default=math.inf)


def _may_be(truth: Array, mine: Array) -> bool:
    """Whether two outputs of the same name have the same elements in some order, or else are different
    outputs.
    """
    return sorted(_sides(truth)) == sorted(_sides(mine))


def _sides(array: Array) -> list[int]:
    return [side for side in array.shape if side > 1]


def _relative(truth: Array, mine: Array) -> float:
    expected, other = (array.astype(np.float64).reshape(-1) for array in (truth, mine))
    same = (expected == other) | (np.isnan(expected) & np.isnan(other))  # infinities of a mask, too
    norm = float(np.linalg.norm(np.where(np.isfinite(expected), expected, 0.0)))
    away = float(np.linalg.norm(np.where(same, 0.0, expected - other)))
    if not away:
        return 0.0
    return away / norm if norm and math.isfinite(away) else math.inf

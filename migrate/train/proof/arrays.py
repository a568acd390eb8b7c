"""Distances of named arrays."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Arrays = Mapping[str, np.ndarray[Any, Any]]


def reader(loss: Any) -> Callable[[Any], Any]:
    """The function that gives the arrays that a program's `loss.py` reads of a batch."""
    if hasattr(loss, "inputs_of"):
        own: Callable[[Any], Any] = loss.inputs_of
        return own
    names = inspect.signature(type(loss.STEP).__call__).parameters
    return lambda batch: {name: value for name, value in batch.items() if name in names}


def norm(arrays: Arrays) -> float:
    """Norm of all arrays together."""
    return math.sqrt(sum(float(np.sum(np.square(x, dtype=np.float64))) for x in arrays.values()))


def distance(ours: Arrays, theirs: Arrays) -> float:
    """Norm of the difference, over the names of `theirs`; infinite if a name or shape is missing."""
    total = 0.0
    for name, value in theirs.items():
        if name not in ours or ours[name].shape != value.shape:
            return math.inf
        total += float(np.sum(np.square(np.asarray(ours[name], np.float64) - value)))
    return math.inf if math.isnan(total) else math.sqrt(total)


def part(arrays: Arrays, prefix: str) -> dict[str, np.ndarray[Any, Any]]:
    """Arrays whose names begin with `prefix:`, without it."""
    begin = f"{prefix}:"
    return {name.removeprefix(begin): x for name, x in arrays.items() if name.startswith(begin)}

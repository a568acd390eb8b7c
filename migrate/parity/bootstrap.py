"""ρ: how many times the error of a side is that of a correct run with the same precision."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from migrate.parity.results import Ratio

DRAWS = 2000
# What is worse than any error that is worth telling apart; infinities and NaN count as this.
_WORST = 1e30


def ratio(
    side: Sequence[float], emulation: Sequence[float], *, floor: float, seed: int = 0
) -> Ratio | None:
    """ρ = exp(mean over inputs of log(err(side) / err(E))), with its 95 % bootstrap interval.

    Each error is taken to be `floor` at least: below it one cannot say how much better a run is than another,
    and an operation that moves data has none at all. The interval is that of percentiles over resampled
    inputs (Efron, *Bootstrap methods*, 1979); of a single input it is the value itself.

    Args:
        side, emulation: relative L2 error of each input, in the same order.
        floor: the error of a correctly rounded result (`rounding_error`).
        seed: of the resampling; the same one gives the same interval.

    Returns:
        None if there are no inputs, or not as many on both sides.
    """
    if len(side) == 0 or len(side) != len(emulation):
        return None
    logs = np.log(_bounded(side, floor)) - np.log(_bounded(emulation, floor))
    means = logs[_draws(len(logs), seed)].mean(axis=1)
    low, high = np.percentile(means, (2.5, 97.5))
    return Ratio(math.exp(logs.mean()), math.exp(low), math.exp(high))


def _bounded(errors: Sequence[float], floor: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    values = np.nan_to_num(np.asarray(errors, np.float64), nan=_WORST, posinf=_WORST)
    return np.clip(values, floor, _WORST)


@functools.lru_cache(maxsize=16)
def _draws(count: int, seed: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.random.default_rng(seed).integers(count, size=(DRAWS, count))

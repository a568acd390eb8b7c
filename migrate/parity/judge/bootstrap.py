"""Ratio ρ: error of a side over the error of a correct run with the same precision."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from migrate.parity.ground.results import Ratio

Logs = np.ndarray[Any, np.dtype[np.float64]]
DRAWS = 2000
# An error worse than any that is worth distinguishing; infinities and NaN count as this.
_WORST = 1e30


def ratio(
    side: Sequence[float], emulation: Sequence[float], *, floor: float, seed: int = 0
) -> Ratio | None:
    """Return ρ = exp(mean over inputs of log(err(side) / err(E))), with its 95 % bootstrap interval.

    Each error counts as `floor` at least: below it, runs cannot be ranked, and an operation that moves data
    has no error at all. The interval is the studentized one over resampled inputs (Efron and Tibshirani, *An
    Introduction to the Bootstrap*, 12.5), no wider than the ratios of the single inputs. For one input it is
    the value itself.

    Coverage, measured with 8 inputs over 3000 draws:

    - logarithms normal, Laplace, Student with 3 degrees of freedom, or exponential: 93 to 94 % (percentiles:
      84 to 88 %), with the lower bound above the truth in 1 to 4 % (2 to 7 %);
    - one input in ten 20 times worse: 75 % (64 %);
    - with 4 inputs 82 to 89 %, with 2 half.

    Args:
        side, emulation: relative L2 error of each input, in the same order.
        floor: the error of a correctly rounded result (`rounding_error`).
        seed: seed of the resampling; the same seed gives the same interval.

    Returns:
        None if there are no inputs, or their numbers differ.
    """
    if len(side) == 0 or len(side) != len(emulation):
        return None
    logs = np.log(_bounded(side, floor)) - np.log(_bounded(emulation, floor))
    low, high = _interval(logs, seed)
    return Ratio(math.exp(logs.mean()), math.exp(low), math.exp(high))


def _interval(logs: Logs, seed: int) -> tuple[float, float]:
    least, most = float(logs.min()), float(logs.max())
    if least == most:
        return least, most
    drawn = logs[_draws(len(logs), seed)]
    off, spread = drawn.mean(axis=1) - logs.mean(), drawn.std(axis=1, ddof=1)
    # A resampled single input has no spread: its interval is infinite, or empty.
    with np.errstate(divide="ignore", invalid="ignore"):
        units = np.where(off == 0, 0.0, off / spread)
    low, high = logs.mean() - logs.std(ddof=1) * np.quantile(
        units, (0.975, 0.025), method="inverted_cdf"
    )
    return max(float(low), least), min(float(high), most)


def _bounded(errors: Sequence[float], floor: float) -> Logs:
    values = np.nan_to_num(np.asarray(errors, np.float64), nan=_WORST, posinf=_WORST)
    return np.clip(values, floor, _WORST)


@functools.lru_cache(maxsize=16)
def _draws(count: int, seed: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.random.default_rng(seed).integers(count, size=(DRAWS, count))

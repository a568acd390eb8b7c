"""Weights with noise on them, so that each shows whether it is in its place."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from converters.checkpoint.cast import FLOATING

Array = np.ndarray[Any, Any]
_SHARE = 0.1
_OF_ZEROS = 0.02


def stirred(
    arrays: Mapping[str, Array], tied: Sequence[Sequence[str]], fixed: Collection[str]
) -> dict[str, Array]:
    """A state dict with noise on each floating tensor; equal ones are no longer equal, but for tied ones.

    Args:
        arrays: the state dict; whole numbers stay, and what has infinities.
        tied: keys of one tensor, group by group.
        fixed: keys that stay too.

    Returns:
        Noise of a tenth of each tensor's own spread, of its value where it is constant; variances stay
        positive.
    """
    random = np.random.default_rng(0)
    first = {key: group[0] for group in tied for key in group}
    made: dict[str, Array] = {}
    for key, array in arrays.items():
        owner = first.get(key, key)
        if key in fixed:
            made[key] = array
        else:
            made[key] = made[owner] if owner in made else _one(key, array, random)
    return made


def _one(key: str, array: Array, random: np.random.Generator) -> Array:
    if array.dtype.name not in FLOATING or not array.size:
        return array
    values = array.astype(np.float64)
    if not np.isfinite(values).all():
        return array
    noise = random.normal(size=array.shape)
    if key.endswith("running_var"):
        return np.asarray(values * np.exp(_SHARE * noise)).astype(array.dtype)
    # What is as good as zero (the gates of layer scale) would hide what it is to show.
    spread = float(values.std()) or max(abs(float(values.flat[0])), _OF_ZEROS / _SHARE)
    return np.asarray(values + _SHARE * spread * noise).astype(array.dtype)

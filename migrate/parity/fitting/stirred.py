"""Weights with noise, so that each shows whether it is in its place."""

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
    """Add noise to each floating tensor of a state dict; only tied tensors stay equal.

    Args:
        arrays: the state dict; integers, and tensors with infinities, stay unchanged.
        tied: groups of keys that share a tensor.
        fixed: further keys to leave unchanged.

    Returns:
        Noise of a tenth of each tensor's own spread, of its value where it is constant; variances stay
        positive.
    """
    random = np.random.default_rng(0)
    first = {key: group[0] for group in tied for key in group}
    noisy: dict[str, Array] = {}
    for key, array in arrays.items():
        owner = first.get(key, key)
        if key in fixed:
            noisy[key] = array
        else:
            noisy[key] = noisy[owner] if owner in noisy else _one(key, array, random)
    return noisy


def _one(key: str, array: Array, random: np.random.Generator) -> Array:
    if array.dtype.name not in FLOATING or not array.size:
        return array
    values = array.astype(np.float64)
    if not np.isfinite(values).all():
        return array
    noise = random.normal(size=array.shape)
    if key.endswith("running_var"):
        return np.asarray(values * np.exp(_SHARE * noise)).astype(array.dtype)
    # Values near zero (the gates of layer scale) would hide the rest of their layer.
    spread = float(values.std()) or max(abs(float(values.flat[0])), _OF_ZEROS / _SHARE)
    return np.asarray(values + _SHARE * spread * noise).astype(array.dtype)

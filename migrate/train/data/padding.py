"""Proof that padding changes no loss: read from recorded batches, checked by the script's own loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_MORE = 5  # positions that are added in the proof


@dataclass(frozen=True)
class PaddingRule:
    """Values that fill batches up to a length.

    Attributes:
        values: key → value.
        left: whether padding is on the left.
    """

    values: Mapping[str, float]
    left: bool


def padding_rule(batches: Sequence[Mapping[str, Any]]) -> PaddingRule | None:
    """Return how the script pads, read from the values of its batches; None if they do not show it.

    A mask has only zeros and ones, and its zeros are at one end of each row. Other arrays of its shape are
    filled with the single value that they have where the mask is zero.
    """
    if not batches or not all(isinstance(batch, Mapping) for batch in batches):
        return None
    keys = [key for key in batches[0] if all(_is_ragged(batch.get(key)) for batch in batches)]
    lengths = {key: tuple(batch[key].shape[1] for batch in batches) for key in keys}
    for key in keys:
        sides = {_side([batch[key] for batch in batches])}
        if sides <= {"left", "right"}:
            chosen = [other for other in keys if lengths[other] == lengths[key]]
            values = {other: _filled(other, key, batches) for other in chosen}
            if all(value is not None for value in values.values()):
                return PaddingRule(
                    {k: v for k, v in values.items() if v is not None}, sides == {"left"}
                )
    return None


def is_neutral(
    loss: Callable[[Mapping[str, Any]], float],
    batches: Sequence[Mapping[str, Any]],
    rule: PaddingRule,
    *,
    limit: float = 1e-5,
) -> bool:
    """Whether the script's loss stays the same when each batch is padded further.

    Args:
        loss: the script's loss of a batch, without dropout.
        batches: recorded batches of NumPy arrays.
        rule: the padding.
        limit: largest relative difference; the sums of a longer batch round otherwise.
    """
    for batch in batches:
        before, after = loss(batch), loss(padded(batch, rule, _MORE))
        if not np.isfinite(before) or abs(after - before) > limit * max(abs(before), 1e-8):
            return False
    return bool(batches)


def padded(batch: Mapping[str, Any], rule: PaddingRule, more: int) -> dict[str, Any]:
    """Return a batch with more padding."""
    result = dict(batch)
    for key, value in rule.values.items():
        widths = [(0, 0)] * batch[key].ndim
        widths[1] = (more, 0) if rule.left else (0, more)
        filler = np.asarray(value, batch[key].dtype)
        result[key] = np.pad(batch[key], widths, constant_values=filler)
    return result


def _is_ragged(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.ndim == 2


def _side(arrays: Sequence[Any]) -> str:
    """Return the end at which a mask has zeros; "" if the arrays are no mask, or show no padding."""
    sides = set()
    for array in arrays:
        if not set(np.unique(array).tolist()) <= {0, 1}:
            return ""
        for row in array.astype(np.int8):
            if not row.all():
                rising = bool((np.diff(row) >= 0).all())
                falling = bool((np.diff(row) <= 0).all())
                sides.add("left" if rising else "right" if falling else "")
    return sides.pop() if len(sides) == 1 else ""


def _filled(key: str, mask: str, batches: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the single value of an array where the mask is zero."""
    values = {value for b in batches for value in np.unique(b[key][b[mask] == 0]).tolist()}
    return float(values.pop()) if len(values) == 1 else None

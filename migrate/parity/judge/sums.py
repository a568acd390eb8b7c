"""Sums of a tensor of a side against the truth's, and their key."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from migrate.parity.dump.dump import TensorRef
from migrate.parity.ground.kinds import OperationClass
from migrate.parity.judge.metrics import Sums, measure
from migrate.parity.judge.probes import TensorProbe, lie_as

Array = np.ndarray[Any, Any]
Axes = tuple[int, ...] | None


class Key(NamedTuple):
    """Key of the sums of a probe; equal if the same sums are needed: a layer's output, another's argument.

    Attributes:
        input: number of the input.
        truth, mine: file and key of the tensors.
        axes, shape, split: as in `TensorPair`.
        ulps: whether units in the last place are measured too.
    """

    input: int
    truth: tuple[str, str]
    mine: tuple[str, str]
    axes: Axes
    shape: Axes
    split: Axes
    ulps: bool


def key_of(probe: TensorProbe, *, ulps: bool) -> Key:
    """Key of a probe."""
    pair = probe.pair
    lie = pair.axes, pair.shape, pair.split
    return Key(probe.input, _place(probe.truth), _place(probe.mine), *lie, ulps)


def is_exact(probe: TensorProbe) -> bool:
    """Whether the tensors hold integers or bools, which are equal or not."""
    return "float" not in probe.truth.dtype and "float" not in probe.mine.dtype


def in_ulps(probe: TensorProbe, kind: OperationClass, *, local: bool) -> bool:
    """Whether units in the last place are meaningful for a layer of this kind."""
    return kind is OperationClass.ELEMENTWISE and local and not is_exact(probe)


def sums_of(
    probe: TensorProbe, truth: Array, mine: Array, kept: Array | None, *, ulps: bool
) -> Sums | None:
    """Sums of a tensor; None: the shapes do not fit.

    Args:
        truth, mine: the values.
        kept: mask of positions [batch, length] that are no padding; None: all positions count.
        ulps: as in `Key`.
    """
    tensors = compared(probe, truth, mine, kept)
    return None if tensors is None else measure(*tensors, probe.mine.dtype, elementwise=ulps)


def compared(
    probe: TensorProbe, truth: Array, mine: Array, kept: Array | None
) -> tuple[Array, Array] | None:
    """Truth's values in the side's layout, and the side's values, without padding; None: they do not fit."""
    lying = lie_as(probe.pair, truth, mine.shape)
    if lying is None:
        return None
    if kept is not None and mine.ndim > 2 and mine.shape[:2] == kept.shape:
        return lying[kept], mine[kept]
    return lying, mine


def _place(ref: TensorRef) -> tuple[str, str]:
    return ref.file, ref.key

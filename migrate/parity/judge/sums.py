"""One tensor of a side against the truth's: what is measured of it, and under which key it is known."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from migrate.parity.dump.dump import TensorRef
from migrate.parity.ground.kinds import OperationClass
from migrate.parity.judge.metrics import Sums, measure
from migrate.parity.judge.probes import Probe, lie_as

Array = np.ndarray[Any, Any]
Axes = tuple[int, ...] | None


class Key(NamedTuple):
    """Equal for probes of which the same sums are wanted: what one layer puts out and another takes.

    Attributes:
        input: number of the input.
        truth, mine: file and key of the tensors.
        axes, shape, split: as of `TensorPair`.
        ulps: whether in units in the last place too.
    """

    input: int
    truth: tuple[str, str]
    mine: tuple[str, str]
    axes: Axes
    shape: Axes
    split: Axes
    ulps: bool


def key_of(probe: Probe, *, ulps: bool) -> Key:
    """The key of a probe."""
    pair = probe.pair
    lie = pair.axes, pair.shape, pair.split
    return Key(probe.input, _place(probe.truth), _place(probe.mine), *lie, ulps)


def is_exact(probe: Probe) -> bool:
    """Whether the tensors hold integers or bools: they are equal or not."""
    return "float" not in probe.truth.dtype and "float" not in probe.mine.dtype


def in_ulps(probe: Probe, kind: OperationClass, *, local: bool) -> bool:
    """Whether units in the last place say anything of what a layer of this kind computes."""
    return kind is OperationClass.ELEMENTWISE and local and not is_exact(probe)


def sums_of(
    probe: Probe, truth: Array, mine: Array, kept: Array | None, *, ulps: bool
) -> Sums | None:
    """What is kept of a tensor; None: the two do not fit.

    Args:
        truth, mine: the values.
        kept: positions [batch, length] that are no padding; None: all are.
        ulps: as of `Key`.
    """
    tensors = compared(probe, truth, mine, kept)
    return None if tensors is None else measure(*tensors, probe.mine.dtype, elementwise=ulps)


def compared(
    probe: Probe, truth: Array, mine: Array, kept: Array | None
) -> tuple[Array, Array] | None:
    """The truth's values as the side's lie, and the side's; without padding. None: they do not fit."""
    lying = lie_as(probe.pair, truth, mine.shape)
    if lying is None:
        return None
    if kept is not None and mine.ndim > 2 and mine.shape[:2] == kept.shape:
        return lying[kept], mine[kept]
    return lying, mine


def _place(ref: TensorRef) -> tuple[str, str]:
    return ref.file, ref.key

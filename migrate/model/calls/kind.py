"""Kinds of values: what an expression of a script may be, as far as a TPU is concerned."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum


class Kind(Enum):
    """Plausible kind of an expression."""

    __hash__ = object.__hash__  # Python's own hashes the name anew each time

    ON_DEVICE = "a tensor on the device"
    TENSOR = "a tensor somewhere"
    MODEL = "a module"
    OPTIMIZER = "an optimizer"
    DEVICE_LOADER = "what yields batches on the device, and ends the graph before each"
    LOADER = "what yields batches"
    CUDA = "a CUDA device, or a choice between one and another device"
    XLA = "the device of XLA"
    INDEX = "the index of a GPU"
    UNKNOWN = "unknown"
    HOST = "another value of the host"
    CPU = "the CPU"


TENSORS = frozenset({Kind.ON_DEVICE, Kind.TENSOR})
LOADERS = frozenset({Kind.DEVICE_LOADER, Kind.LOADER})
# Kinds with a device of their own, or containers and iterables of such kinds.
PLACED = TENSORS | LOADERS | {Kind.MODEL, Kind.OPTIMIZER}
ACCELERATORS = frozenset({Kind.CUDA, Kind.INDEX, Kind.XLA})
DEVICES = ACCELERATORS | {Kind.CPU}
_RANKS = {kind: rank for rank, kind in enumerate(Kind)}


def joined(kinds: Iterable[Kind]) -> Kind:
    """Return the deciding kind for a value that may be any of several kinds.

    The earlier one in `Kind` decides. A value that may be something other than an index is no index. Without
    kinds: a host value.
    """
    distinct = set(kinds)
    if Kind.UNKNOWN in distinct or Kind.HOST in distinct:
        distinct.discard(Kind.INDEX)
    return min(distinct, key=_RANKS.__getitem__, default=Kind.HOST)


def held(kinds: Iterable[Kind]) -> Kind:
    """Return the kind of a container of such values, or of a value computed from them: no device remains."""
    return joined(Kind.HOST if kind in DEVICES else kind for kind in kinds)

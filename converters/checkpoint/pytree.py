"""Flax pytrees: nested dicts of arrays, and the arrays of a pytree that is not written yet.

The paths begin with the collection: `params/encoder/layer_0/…/kernel`, `batch_stats/bn/mean`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from converters.checkpoint.reader import TensorInfo

Format = Literal["safetensors", "msgpack", "orbax"]
Pytree = dict[str, Any]  # nested dicts of arrays, e.g. {"params": {"dense": {"kernel": …}}}


class Sliceable(Protocol):
    """Array, or an object that returns parts of an array on demand."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type."""

    def __getitem__(self, box: tuple[slice, ...], /) -> np.ndarray[Any, Any]:
        """Return the part in this box."""


@dataclass(frozen=True)
class Unit:
    """Contiguous range of a leaf's bytes.

    Attributes:
        start: the first byte within the leaf.
        shape: the shape of the array with these bytes in row-major order. The elements are the leaf's.
            Axes that only the leaf's shape merges may be separate here, which avoids a copy.
        open: returns the array, or an object that returns its parts.
        release: releases the memory that `open` mapped.
        prepare: begins to read the data for `open`; called once before it. Units with the same
            function share the data. None if there is nothing to begin.
    """

    start: int
    shape: tuple[int, ...]
    open: Callable[[], Sliceable]
    release: Callable[[], None]
    prepare: Callable[[], None] | None = None


@dataclass(frozen=True)
class PytreeLeaf:
    """Array of a pytree.

    Attributes:
        path: the `/`-joined path.
        info: its shape and dtype.
        read: returns the complete array.
        units: returns the ranges that can be read one after the other; None to use `read`.
        open: returns an object with its parts on demand; None to use `read`.
        parts: like `open`, for these parts only, whose read begins; None to use `open`.
        is_separable: whether this part can be read separately, with all parts costing no more than the
            whole; None for no.
        overreads: whether reading this part of a remote file reads much more than the part; None if
            unknown.
        release: releases the memory that the read mapped.
        prepare: begins to read it; called once before each read or open.
        cast: whether the data may have another dtype and must be cast.
    """

    path: str
    info: TensorInfo
    read: Callable[[], np.ndarray[Any, Any]]
    units: Callable[[], tuple[Unit, ...]] | None = None
    open: Callable[[], Sliceable] | None = None
    parts: Callable[[Sequence[tuple[slice, ...]]], Sliceable] | None = None
    is_separable: Callable[[tuple[slice, ...]], bool] | None = None
    overreads: Callable[[tuple[slice, ...]], bool] | None = None
    release: Callable[[], None] | None = None
    prepare: Callable[[], None] | None = None
    cast: bool = False

    @property
    def box(self) -> tuple[slice, ...]:
        """The complete array as a part."""
        return tuple(slice(0, side) for side in self.info.shape)


def nest(arrays: Iterable[tuple[str, Any]]) -> Pytree:
    """Return nested dicts for `/`-joined paths."""
    tree: Pytree = {}
    for path, array in arrays:
        *folders, name = path.split("/")
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {})
        node[name] = array
    return tree


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return `/`-joined paths for nested dicts: the inverse of `nest`."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        path = f"{prefix}{name}"
        flat |= flatten(value, f"{path}/") if isinstance(value, Mapping) else {path: value}
    return flat


def with_positions(tree: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the tree with numbers for digit keys: positions of lists in nnx."""
    return {
        _position(name): with_positions(node) if isinstance(node, Mapping) else node
        for name, node in tree.items()
    }


def _position(name: Any) -> Any:
    is_number = isinstance(name, str) and name.isdecimal() and name.isascii()
    return int(name) if is_number else name

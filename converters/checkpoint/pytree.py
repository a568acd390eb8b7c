"""Flax pytrees: nested dicts of arrays, and the arrays of one that is still to be written.

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
    """An array, or what gives parts of one on demand."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sides."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Its element type."""

    def __getitem__(self, box: tuple[slice, ...], /) -> np.ndarray[Any, Any]:
        """The part in this box."""


@dataclass(frozen=True)
class Unit:
    """A stretch of a leaf's bytes.

    Attributes:
        start: its first byte in the leaf.
        shape: of the array that has these bytes in row-major order. Its elements are the leaf's, its sides
            need not be: axes that only the leaf's shape joins are apart here, so that no copy is made.
        open: gives the array, or what gives its parts.
        release: lets go of what `open` mapped into memory.
        prepare: begins to read what `open` will want; called once before it. Units with the same one
            share what it reads. None: there is nothing to begin.
    """

    start: int
    shape: tuple[int, ...]
    open: Callable[[], Sliceable]
    release: Callable[[], None]
    prepare: Callable[[], None] | None = None


@dataclass(frozen=True)
class Leaf:
    """One array of a pytree.

    Attributes:
        path: `/`-joined.
        info: its shape and dtype.
        read: gives it, whole.
        units: gives the stretches of it that can be read one after the other; None: `read` is used.
        open: gives what has its parts on demand; None: `read` is used.
        parts: gives what has these parts on demand, and begins to read them; None: `open` is used.
        apart: whether this part can be read by itself, and all parts so for no more than the whole; None: no.
        lavish: whether much more would be read of a far file for this part than it has; None: not known.
        release: lets go of what reading it mapped into memory.
        prepare: begins to read it; called once before each time that it is read or opened.
        cast: whether what is read may have another dtype, and is to be cast.
    """

    path: str
    info: TensorInfo
    read: Callable[[], np.ndarray[Any, Any]]
    units: Callable[[], tuple[Unit, ...]] | None = None
    open: Callable[[], Sliceable] | None = None
    parts: Callable[[Sequence[tuple[slice, ...]]], Sliceable] | None = None
    apart: Callable[[tuple[slice, ...]], bool] | None = None
    lavish: Callable[[tuple[slice, ...]], bool] | None = None
    release: Callable[[], None] | None = None
    prepare: Callable[[], None] | None = None
    cast: bool = False

    @property
    def box(self) -> tuple[slice, ...]:
        """All of it, as a part."""
        return tuple(slice(0, side) for side in self.info.shape)


def nest(arrays: Iterable[tuple[str, Any]]) -> Pytree:
    """Nested dicts from `/`-joined paths."""
    tree: Pytree = {}
    for path, array in arrays:
        *folders, name = path.split("/")
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {})
        node[name] = array
    return tree


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """`/`-joined paths from nested dicts: the inverse of `nest`."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        path = f"{prefix}{name}"
        flat |= flatten(value, f"{path}/") if isinstance(value, Mapping) else {path: value}
    return flat


def with_positions(tree: Mapping[Any, Any]) -> dict[Any, Any]:
    """The tree with numbers for keys that are digits: positions of lists, in nnx's names."""
    return {
        _position(name): with_positions(node) if isinstance(node, Mapping) else node
        for name, node in tree.items()
    }


def _position(name: Any) -> Any:
    is_number = isinstance(name, str) and name.isdecimal() and name.isascii()
    return int(name) if is_number else name

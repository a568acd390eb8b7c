"""Layout of a msgpack pytree, byte for byte as flax writes it, known before a value is read.

An array is an extension of type 1 that contains, packed again, its shape, the name of its dtype and
its bytes. An array of more than 2**30 bytes is a map of flat pieces (flax.serialization, `_chunk`).
Keys are sorted on each level, as by `flax.serialization.msgpack_serialize`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any

from converters.checkpoint.dtypes import numpy_dtype
from converters.checkpoint.pytree import PytreeLeaf, nest, with_positions
from converters.output.layouts import FileLayoutBuilder, OutputLayout, Stretch

# flax.serialization.MAX_CHUNK_SIZE
CHUNK_BYTES = 2**30
_NDARRAY = 1  # flax.serialization._MsgpackExtType.ndarray


def msgpack_layout(
    leaves: Sequence[PytreeLeaf], *, positions: bool = False, chunk_bytes: int = CHUNK_BYTES
) -> OutputLayout:
    """Return the layout of a file with these leaves.

    Args:
        leaves: the arrays.
        positions: whether digits in paths are numbers, as in nnx.
        chunk_bytes: the chunk size of flax, except in tests.
    """
    file = FileLayoutBuilder()
    tree = nest((leaf.path, leaf) for leaf in leaves)
    _add(file, with_positions(tree) if positions else tree, chunk_bytes)
    return file.layout()


def _add(file: FileLayoutBuilder, node: Any, chunk_bytes: int) -> None:
    if isinstance(node, PytreeLeaf):
        _add_leaf(file, node, chunk_bytes)
        return
    file.add(_map(len(node)))
    for name in sorted(node, key=lambda name: (isinstance(name, str), name)):
        file.add(_text(name) if isinstance(name, str) else _integer(name))
        _add(file, node[name], chunk_bytes)


def _add_leaf(file: FileLayoutBuilder, leaf: PytreeLeaf, chunk_bytes: int) -> None:
    size = leaf.info.nbytes
    if size <= chunk_bytes:
        file.add_leaf(leaf, [_add_array(file, leaf, leaf.info.shape, 0, size)])
        return
    itemsize = numpy_dtype(leaf.info.dtype, leaf.path).itemsize
    step = max(1, chunk_bytes // itemsize) * itemsize
    file.add(_map(3) + _text("__msgpack_chunked_array__") + b"\xc3" + _text("shape"))
    file.add(_map(len(leaf.info.shape)))
    for axis, side in enumerate(leaf.info.shape):
        file.add(_text(str(axis)) + _integer(side))
    starts = range(0, size, step)
    file.add(_text("chunks") + _map(len(starts)))
    stretches = []
    for number, start in enumerate(starts):
        stop = min(start + step, size)
        file.add(_text(str(number)))
        shape = ((stop - start) // itemsize,)
        stretches.append(_add_array(file, leaf, shape, start, stop))
    file.add_leaf(leaf, stretches)


def _add_array(
    file: FileLayoutBuilder, leaf: PytreeLeaf, shape: tuple[int, ...], start: int, stop: int
) -> Stretch:
    sides = _array(len(shape)) + b"".join(map(_integer, shape))
    inner = _array(3) + sides + _text(leaf.info.dtype) + _bytes_header(stop - start)
    size = len(inner) + stop - start
    file.add(_extension(size) + inner)
    return file.reserve(start, stop)


# https://github.com/msgpack/msgpack/blob/master/spec.md, each in its shortest form, as packed by
# msgpack-python.


def _sized(size: int, forms: Iterable[tuple[int, str]]) -> bytes:
    """Return the first form whose field can hold the size: the type's byte, then the size, big endian."""
    for code, field in forms:
        if size < 256 ** struct.calcsize(field):
            return bytes([code]) + struct.pack(f">{field}", size)
    raise ValueError(f"{size} is too large for msgpack")


def _map(size: int) -> bytes:
    return bytes([0x80 | size]) if size < 16 else _sized(size, ((0xDE, "H"), (0xDF, "I")))


def _array(size: int) -> bytes:
    return bytes([0x90 | size]) if size < 16 else _sized(size, ((0xDC, "H"), (0xDD, "I")))


def _integer(value: int) -> bytes:
    if value < 128:
        return bytes([value])
    return _sized(value, ((0xCC, "B"), (0xCD, "H"), (0xCE, "I"), (0xCF, "Q")))


def _text(text: str) -> bytes:
    data = text.encode()
    if len(data) < 32:
        return bytes([0xA0 | len(data)]) + data
    return _sized(len(data), ((0xD9, "B"), (0xDA, "H"), (0xDB, "I"))) + data


def _bytes_header(size: int) -> bytes:
    return _sized(size, ((0xC4, "B"), (0xC5, "H"), (0xC6, "I")))


def _extension(size: int) -> bytes:
    fixed = {1: 0xD4, 2: 0xD5, 4: 0xD6, 8: 0xD7, 16: 0xD8}
    if size in fixed:
        return bytes([fixed[size], _NDARRAY])
    return _sized(size, ((0xC7, "B"), (0xC8, "H"), (0xC9, "I"))) + bytes([_NDARRAY])

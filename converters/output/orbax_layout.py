"""Layout of an orbax checkpoint: a folder with one zarr array per leaf, and the tree's metadata.

It matches `orbax.checkpoint.PyTreeCheckpointHandler(use_ocdbt=False)` (0.12), but without
compression. A chunk's file is its bytes in row-major order, so it is written like any other range,
without a complete array in memory and without orbax. StandardCheckpointer and PyTreeCheckpointer
read it as numpy arrays, or onto a mesh if the target specifies one. Then each device reads only its
own chunks, if the array was cut like the mesh.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from converters.checkpoint.dtypes import numpy_dtype
from converters.checkpoint.pytree import PytreeLeaf
from converters.errors import OutputError, UnsupportedDtypeError
from converters.output.layouts import FileLayoutBuilder, FrameBytes, OutputLayout, PlacedLeaf
from converters.output.units import Box, part_of

METADATA_NAME = "_METADATA"
_HANDLER = "orbax.checkpoint._src.handlers.pytree_checkpoint_handler.PyTreeCheckpointHandler"
_DICT_KEY = 2  # orbax.checkpoint._src.metadata.tree.KeyType.DICT
# tensorstore reads a chunk completely: a device's part of a large array should not cost all of it.
_CHUNK_BYTES = 256 << 20
# zarr 2 names a type like numpy's `str`; types without a numpy code have tensorstore's names.
_NAMED = frozenset({"bfloat16", "float8_e4m3fn", "float8_e5m2"})
_LACKING = frozenset({"float8_e8m0fnu"})


def orbax_layout(leaves: Sequence[PytreeLeaf], cuts: Mapping[str, tuple[int, ...]]) -> OutputLayout:
    """Return the layout of a folder with these leaves.

    Args:
        leaves: the arrays.
        cuts: leaf → number of equal parts along each axis; other leaves are cut if they are large.

    Raises:
        UnsupportedDtypeError: tensorstore's zarr has no such element type.
        OutputError: an array has no elements, which orbax does not support, or two arrays have one name.
    """
    frames = [FrameBytes(0, _tree_metadata(leaves), METADATA_NAME)]
    placed: list[PlacedLeaf] = []
    wholes: dict[str, PytreeLeaf] = {}
    folders: dict[str, str] = {}
    for leaf in leaves:
        folder = leaf.path.replace("/", ".")
        _require_possible(leaf, folders.setdefault(folder, leaf.path))
        parts = cuts.get(leaf.path) or _parts(leaf)
        chunk = tuple(side // count for side, count in zip(leaf.info.shape, parts, strict=True))
        frames.append(FrameBytes(0, _array_metadata(leaf, chunk), f"{folder}/.zarray"))
        for name, box in _chunks(chunk, parts):
            part = leaf if leaf.info.shape == chunk else part_of(leaf, box, f"{leaf.path} {name}")
            wholes[part.path] = leaf
            builder = FileLayoutBuilder(f"{folder}/{name}")
            builder.add_leaf(part, [builder.reserve(0, part.info.nbytes)])
            placed += builder.layout().placed
    frames.append(FrameBytes(0, _checkpoint_metadata(), "_CHECKPOINT_METADATA"))
    sizes = {frame.file: len(frame.data) for frame in frames}
    sizes |= {place.stretches[0].file: place.leaf.info.nbytes for place in placed}
    return OutputLayout(tuple(frames), tuple(placed), sizes, wholes)


def _require_possible(leaf: PytreeLeaf, owner: str) -> None:
    if owner != leaf.path:
        raise OutputError(
            f"{leaf.path} and {owner} have the same name in an orbax checkpoint",
            "write safetensors instead",
        )
    if leaf.info.size == 0:
        raise OutputError(
            f"{leaf.path} has no elements, which orbax does not take", "write safetensors instead"
        )
    if leaf.info.dtype in _LACKING:
        raise UnsupportedDtypeError(
            f"{leaf.path} has the element type {leaf.info.dtype}, which orbax cannot read",
            "write safetensors instead",
        )


def _parts(leaf: PytreeLeaf) -> tuple[int, ...]:
    """Return the number of parts along each axis by size: the first axis is cut, if evenly divisible."""
    shape = leaf.info.shape
    if leaf.info.nbytes <= _CHUNK_BYTES:
        return (1,) * len(shape)
    least = -(-leaf.info.nbytes // _CHUNK_BYTES)
    even = (count for count in range(least, shape[0] + 1) if shape[0] % count == 0)
    return (next(even, 1), *(1,) * (len(shape) - 1))


def _chunks(chunk: tuple[int, ...], parts: tuple[int, ...]) -> Iterator[tuple[str, Box]]:
    """Yield the names and boxes of the chunks."""
    for place in itertools.product(*map(range, parts)):
        box = tuple(
            slice(index * side, (index + 1) * side)
            for index, side in zip(place, chunk, strict=True)
        )
        yield ".".join(map(str, place)) or "0", box


def _array_metadata(leaf: PytreeLeaf, chunk: tuple[int, ...]) -> bytes:
    dtype = leaf.info.dtype
    metadata = {
        "chunks": chunk,
        "compressor": None,
        "dimension_separator": ".",
        "dtype": dtype if dtype in _NAMED else numpy_dtype(dtype, leaf.path).str,
        "fill_value": None,
        "filters": None,
        "order": "C",
        "shape": leaf.info.shape,
        "zarr_format": 2,
    }
    return json.dumps(metadata).encode()


def _tree_metadata(leaves: Sequence[PytreeLeaf]) -> bytes:
    tree: dict[str, Any] = {}
    for leaf in leaves:
        names = tuple(leaf.path.split("/"))
        tree[str(names)] = {
            "key_metadata": [{"key": name, "key_type": _DICT_KEY} for name in names],
            "value_metadata": {"value_type": "np.ndarray", "skip_deserialize": False},
        }
    return json.dumps(
        {
            "tree_metadata": tree,
            "use_ocdbt": False,
            "use_zarr3": False,
            "store_array_data_equal_to_fill_value": True,
            "custom_metadata": None,
        }
    ).encode()


def _checkpoint_metadata() -> bytes:
    # No times: the same conversion gives the same bytes.
    metadata: dict[str, Any] = {
        "item_handlers": _HANDLER,
        "metrics": {},
        "performance_metrics": {},
        "init_timestamp_nsecs": None,
        "commit_timestamp_nsecs": None,
        "custom_metadata": {},
    }
    return json.dumps(metadata).encode()

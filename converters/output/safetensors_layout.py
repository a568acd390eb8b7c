"""Layout of a safetensors file: the header's length, the header, the arrays, widest types first."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from converters.checkpoint.dtypes import SAFETENSORS_CODES, numpy_dtype
from converters.checkpoint.pytree import PytreeLeaf
from converters.errors import UnsupportedDtypeError
from converters.output.layouts import FileLayoutBuilder, FrameBytes, OutputLayout
from converters.safetensors_header import safetensors_header

INDEX_NAME = "model.safetensors.index.json"


def safetensors_layout(
    leaves: Sequence[PytreeLeaf], metadata: Mapping[str, str], file: str = ""
) -> OutputLayout:
    """Return the layout of a file with these leaves; `file` is its name in a folder output.

    Raises:
        UnsupportedDtypeError: safetensors cannot hold an element type.
    """
    for leaf in leaves:
        if leaf.info.dtype not in SAFETENSORS_CODES:
            raise UnsupportedDtypeError(
                f"{leaf.path} has the element type {leaf.info.dtype}, which safetensors lacks",
                "write msgpack instead",
            )
    # Named as by the safetensors library in the header.
    ordered = sorted(
        leaves, key=lambda leaf: (-numpy_dtype(leaf.info.dtype, leaf.path).itemsize, leaf.path)
    )
    start, _ = safetensors_header({leaf.path: leaf.info for leaf in ordered}, metadata)
    builder = FileLayoutBuilder(file)
    builder.add(start)
    for leaf in ordered:
        builder.add_leaf(leaf, [builder.reserve(0, leaf.info.nbytes)])
    return builder.layout()


def sharded_layout(
    leaves: Sequence[PytreeLeaf], metadata: Mapping[str, str], shard_bytes: int
) -> OutputLayout:
    """Return the layout of a folder of safetensors files with an index, in Hugging Face's form.

    Args:
        leaves: the arrays.
        metadata: the metadata of every file.
        shard_bytes: the maximum bytes of values in a file; a larger array has a separate file.

    Raises:
        UnsupportedDtypeError: safetensors cannot hold an element type.
    """
    shards: list[list[PytreeLeaf]] = [[]]
    held = 0
    for leaf in leaves:
        if shards[-1] and held + leaf.info.nbytes > shard_bytes:
            shards.append([])
            held = 0
        shards[-1].append(leaf)
        held += leaf.info.nbytes
    built = {}
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        built[name] = safetensors_layout(shard, metadata, name)
        weight_map |= {leaf.path: name for leaf in shard}
    total = sum(leaf.info.nbytes for leaf in leaves)
    index = {"metadata": {"total_size": total, **metadata}, "weight_map": weight_map}
    text = json.dumps(index, indent=1).encode()
    return OutputLayout(
        (
            FrameBytes(0, text, INDEX_NAME),
            *(frame for layout in built.values() for frame in layout.frames),
        ),
        tuple(place for layout in built.values() for place in layout.placed),
        {INDEX_NAME: len(text)} | {name: layout.sizes[name] for name, layout in built.items()},
    )

"""The layout of a safetensors file: the header's length, the header, the arrays, the widest types first."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from converters.checkpoint.dtypes import SAFETENSORS_CODES, numpy_dtype
from converters.checkpoint.pytree import Leaf
from converters.errors import UnsupportedDtypeError
from converters.output.layouts import FileLayout, FileLayoutBuilder


def safetensors_layout(leaves: Sequence[Leaf], metadata: Mapping[str, str]) -> FileLayout:
    """The file that holds these leaves.

    Raises:
        UnsupportedDtypeError: safetensors cannot hold an element type.
    """
    for leaf in leaves:
        if leaf.info.dtype not in SAFETENSORS_CODES:
            raise UnsupportedDtypeError(
                f"{leaf.path} has the element type {leaf.info.dtype}, which safetensors lacks",
                "write msgpack instead",
            )
    # As the safetensors library orders them: every array is then aligned in the file.
    ordered = sorted(
        leaves, key=lambda leaf: (-numpy_dtype(leaf.info.dtype, leaf.path).itemsize, leaf.path)
    )
    entries: dict[str, Any] = {"__metadata__": dict(metadata)}
    offset = 0
    for leaf in ordered:
        end = offset + leaf.info.nbytes
        entries[leaf.path] = {
            "dtype": SAFETENSORS_CODES[leaf.info.dtype],
            "shape": leaf.info.shape,
            "data_offsets": (offset, end),
        }
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file = FileLayoutBuilder()
    file.add(len(text).to_bytes(8, "little") + text)
    for leaf in ordered:
        file.placed(leaf, [file.place(0, leaf.info.nbytes)])
    return file.built()

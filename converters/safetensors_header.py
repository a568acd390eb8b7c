"""Write the header of a safetensors file: https://github.com/huggingface/safetensors#format"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from converters.checkpoint.dtypes import SAFETENSORS_CODES, numpy_dtype
from converters.checkpoint.reader import TensorInfo


def safetensors_header(
    infos: Mapping[str, TensorInfo], metadata: Mapping[str, str] | None = None
) -> tuple[bytes, list[str]]:
    """Return the header's length and the header, and the order of the tensors.

    As in the safetensors library, the widest types come first, so that every tensor is aligned in
    the file.

    Args:
        infos: the shapes and dtypes of the tensors, which safetensors supports.
        metadata: the metadata, as text.
    """
    ordered = sorted(infos, key=lambda key: -numpy_dtype(infos[key].dtype, key).itemsize)
    starts: dict[str, int] = {}
    end = 0
    for key in ordered:
        starts[key] = end
        end += infos[key].nbytes
    entries: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    for key, info in infos.items():
        entries[key] = {
            "dtype": SAFETENSORS_CODES[info.dtype],
            "shape": list(info.shape),
            "data_offsets": [starts[key], starts[key] + info.nbytes],
        }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, ordered

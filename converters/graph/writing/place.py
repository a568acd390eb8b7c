"""Paths of the arrays of a port, as `migrate weights` names them."""

from __future__ import annotations

from typing import Any

from converters.mapping.module_tree import BUFFERS
from converters.mapping.paths import Api, ModuleLocation


def buffer_path(root: Any, key: str, api: Api = "linen") -> str:
    """The path of a buffer ("buffers/layers_0/rotary/inv_freq"; in nnx "layers/0/rotary/inv_freq")."""
    *parts, name = key.split(".")
    at, place = root, ModuleLocation(api)
    for part in parts:
        index = list(at._modules).index(part)
        place = place.child(at, part, index)
        at = at._modules[part]
    path = place.weight(at, name)
    return path if api == "nnx" else f"{BUFFERS}/{path}"

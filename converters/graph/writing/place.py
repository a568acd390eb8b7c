"""Paths of the arrays of a port, as `migrate weights` names them."""

from __future__ import annotations

from typing import Any

from converters.mapping.module_tree import BUFFERS
from converters.mapping.paths import ModuleLocation


def buffer_path(root: Any, key: str) -> str:
    """The path of a buffer ("buffers/layers_0/rotary/inv_freq")."""
    *parts, name = key.split(".")
    at, place = root, ModuleLocation("linen")
    for part in parts:
        index = list(at._modules).index(part)
        place = place.child(at, part, index)
        at = at._modules[part]
    return f"{BUFFERS}/{place.weight(at, name)}"

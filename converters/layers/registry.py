"""All layer kinds there are: every module of `converters/layers/kinds/` with its `ENTRIES`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from converters.layers import kinds
from converters.layers.entry import LayerEntry


@cache
def entries() -> Mapping[str, LayerEntry]:
    """Kind → entry, found by looking through the package: a new file needs no other change.

    Raises:
        ValueError: a file without entries, or two entries of one kind.
    """
    found: dict[str, LayerEntry] = {}
    for info in pkgutil.iter_modules(kinds.__path__):
        module = importlib.import_module(f"{kinds.__name__}.{info.name}")
        declared: tuple[LayerEntry, ...] = getattr(module, "ENTRIES", ())
        if not declared:
            raise ValueError(f"{module.__name__} declares no ENTRIES")
        for entry in declared:
            if entry.kind in found:
                raise ValueError(f"{module.__name__} declares {entry.kind}, which there is already")
            found[entry.kind] = entry
    return MappingProxyType(found)

"""Registry of all layer kinds: the `ENTRIES` of every module of `converters/layers/kinds/`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from converters.layers import kinds
from converters.layers.entry import LayerEntry
from converters.layers.flax_call import Api, FlaxCall
from converters.layers.reparametrized import around, is_reparametrized


@cache
def entries() -> Mapping[str, LayerEntry]:
    """Return kind → entry, found by searching the package: a new file needs no other change.

    Raises:
        ValueError: a file has no entries, or two entries have one kind.
    """
    by_kind: dict[str, LayerEntry] = {}
    for info in pkgutil.iter_modules(kinds.__path__):
        module = importlib.import_module(f"{kinds.__name__}.{info.name}")
        declared: tuple[LayerEntry, ...] = getattr(module, "ENTRIES", ())
        if not declared:
            raise ValueError(f"{module.__name__} declares no ENTRIES")
        for entry in declared:
            if entry.kind in by_kind:
                raise ValueError(f"{module.__name__} declares {entry.kind}, which there is already")
            by_kind[entry.kind] = entry
    return MappingProxyType(by_kind)


def find_entry(
    module: Any, kinds: Mapping[str, LayerEntry] | None = None
) -> tuple[LayerEntry | None, str]:
    """Return the entry of a module's layer kind; without an entry, the name of its torch class.

    The nearest torch class decides, so a user's subclass of `nn.Linear` is a Linear. Neither is
    returned for a user's own module, a plain container, or a loss (its class weights are buffers
    under their own name).
    """
    from torch import nn

    kinds = entries() if kinds is None else kinds
    for cls in type(module).__mro__:
        if cls in (nn.Module, nn.Sequential, nn.ModuleList, nn.ModuleDict):
            return None, ""
        if cls in (nn.ParameterList, nn.ParameterDict) or cls.__module__ == "torch.nn.modules.loss":
            return None, ""
        entry = kinds.get(cls.__name__)
        # Not `getattr(nn, kind) is cls`: importing torch_xla replaces torch's GRU.
        if entry is not None and cls.__module__.startswith("torch.nn.modules."):
            return entry, ""
        if cls.__module__.startswith("torch.") and not _is_variant(cls):
            at_home = cls.__module__.startswith("torch.nn.modules.")
            return None, cls.__name__ if at_home else f"{cls.__module__}.{cls.__name__}"
    raise TypeError(f"{type(module)} is not an nn.Module")


def _is_variant(cls: type) -> bool:
    """Whether this torch class computes the same as its base class.

    This holds for a layer with parametrizations, for a lazy layer after its first run, and for the
    Linear in attention.
    """
    return "forward" not in vars(cls)


def flax_calls(
    module: Any, api: Api, known: Mapping[str, LayerEntry] | None = None
) -> tuple[FlaxCall, ...]:
    """Return the Flax modules that compute the same as a torch layer, the preferred one first.

    The result is empty if the kind is unknown, or has no counterpart for its configuration.

    Args:
        module: the layer; a user's own subclass of one may compute something else.
        api: the Flax API.
        known: entries that replace those of their kinds, or None.
    """
    entry, _ = find_entry(module, {**entries(), **(known or {})})
    inside = (child for child in module.modules() if child is not module)
    # The call of a layer made of other layers does not show their parametrizations.
    if entry is None or any(is_reparametrized(child) for child in inside):
        return ()
    calls = (around(module, entry, call, api) for call in entry.calls(module, api))
    return tuple(call for call in calls if call is not None)

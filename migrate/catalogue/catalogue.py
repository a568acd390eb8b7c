"""Catalogue of the support that names of torch and other libraries have on XLA.

The hazards that are a list of names, the reports of what no rule handles, the rules that are a table, and
the advice of both styles come from here; `tests/reading/test_catalogue.py` holds it against torch itself
and against what `shims` answers and refuses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache, lru_cache

from migrate.catalogue.entry import CatalogueEntry, OnXla, public
from migrate.catalogue.libraries import APEX, HUB_KERNELS, LIBRARIES
from migrate.catalogue.target import XLA, Target
from migrate.catalogue.torch_cuda import TORCH_CUDA
from migrate.catalogue.torch_distributed import TORCH_DISTRIBUTED
from migrate.catalogue.torch_other import TORCH_OTHER
from migrate.catalogue.torch_xla import TORCH_XLA


def _by_name(entries: Iterable[CatalogueEntry]) -> dict[str, CatalogueEntry]:
    by_name: dict[str, CatalogueEntry] = {}
    for entry in entries:
        if entry.name in by_name:
            raise TypeError(f"two entries of the catalogue are {entry.name}")
        by_name[entry.name] = entry
    return by_name


# Reported where they are used.
NAMES = _by_name((*TORCH_CUDA, *TORCH_DISTRIBUTED, *TORCH_OTHER, *TORCH_XLA, *APEX, *HUB_KERNELS))
# Reported where they are imported.
IMPORTS = NAMES | _by_name(LIBRARIES)


@cache
def _names(target: Target) -> Mapping[str, CatalogueEntry]:
    """Return the column of a target: what is reported where it is used."""
    if target == XLA:
        return NAMES
    from migrate.catalogue.torch_tpu import TORCH_TPU

    return _by_name(TORCH_TPU)


@cache
def _imports(target: Target) -> Mapping[str, CatalogueEntry]:
    """Return the column of a target: what is reported where it is imported."""
    if target == XLA:
        return IMPORTS
    from migrate.catalogue.torch_tpu import TPU_LIBRARIES

    return {**_names(target), **_by_name(TPU_LIBRARIES)}


def entries(target: Target) -> Iterable[CatalogueEntry]:
    """Return the entries of the names that are reported where they are used."""
    return _names(target).values()


@lru_cache(maxsize=10_000)
def of(name: str, target: Target = XLA) -> CatalogueEntry | None:
    """Return the entry of the qualified `name`, otherwise that of its longest known prefix.

    The entry of a working name does not apply to the names below it.
    """
    return _longest(name, _names(target))


def of_import(name: str, target: Target = XLA) -> CatalogueEntry | None:
    """Return the entry of an imported module, or of an imported name."""
    return _longest(name, _imports(target))


def _longest(name: str, entries: Mapping[str, CatalogueEntry]) -> CatalogueEntry | None:
    known = name if name in entries else public(name)
    entry = entries.get(known)
    while entry is None and "." in known:
        known = known.rpartition(".")[0]
        above = entries.get(known)
        entry = None if above is None or above.on_xla is OnXla.WORKS else above
    return entry

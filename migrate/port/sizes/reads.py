"""Find the attributes of its configuration that a model reads. Other attributes prove nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from migrate.port.sizes.construction import Construction
from migrate.port.sizes.instance import SEED, Arrays, quiet, run
from migrate.port.sizes.leaves import Leaf


@dataclass(frozen=True)
class ConfigReads:
    """The attributes that were read, by the argument that has them."""

    names: Mapping[str, frozenset[str]]

    def has(self, leaf: Leaf) -> bool:
        """Whether a number may have been read; one that is no attribute of an argument may."""
        if len(leaf.path) < 2 or leaf.path[0] not in self.names:
            return True
        return leaf.path[1] in self.names[leaf.path[0]]


def reads(construction: Construction, inputs: Arrays) -> ConfigReads | None:
    """Build a model and run it with configurations that note what is read of them.

    Returns:
        What was read, or None if the model refuses such configurations.
    """
    arguments = construction.copied()
    reads: dict[str, set[str]] = {}
    try:
        for name, value in arguments.items():
            kind = type(value)
            if _is_configuration(value):
                value.__class__ = _noting(kind, reads.setdefault(name, set()))
        if not reads:
            return None
        with quiet(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            run(construction.build(arguments).float().eval(), inputs)
    except Exception:  # whatever a constructor does with a class that it does not know
        return None
    return ConfigReads({name: frozenset(names) for name, names in reads.items()})


def _is_configuration(value: Any) -> bool:
    return hasattr(value, "__dict__") and not (
        isinstance(value, type | torch.nn.Module | torch.Tensor | Mapping) or callable(value)
    )


def _noting(kind: type, names: set[str]) -> type:
    """A class that does as another one, and notes the attributes that are read."""

    inner: Any = kind.__getattribute__

    def read(self: Any, name: str) -> Any:
        if not name.startswith("__"):
            names.add(name)
            names.add(getattr(kind, "attribute_map", {}).get(name, name))
        return inner(self, name)

    return type(kind.__name__, (kind,), {"__getattribute__": read, "__module__": kind.__module__})

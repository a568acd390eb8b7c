"""Which names are models that DistributedDataParallel wraps, or its like."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

if TYPE_CHECKING:
    from migrate.reading.names.parsed import Parsed

WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel", "shims.ddp")


def is_wrapped(name: cst.Name, context: Parsed) -> bool:
    """Whether some assignment in the scope that binds `name` wraps a model: `DDP(net).to(device)`, too."""
    return any(True for _ in wraps(name, context))


def wraps(name: cst.Name, context: Parsed) -> Iterator[cst.BaseExpression]:
    """Yield the values that are assigned to `name`, in the scope that binds it, and that wrap a model."""
    for value in context.bound_values(name):
        made = context.qualified_name(_made_by(value)) or ""
        if isinstance(value, cst.BaseExpression) and made.endswith(WRAPPERS):
            yield value


def _made_by(value: cst.CSTNode | None) -> cst.CSTNode | None:
    """Return the function that makes `value`: `DDP` of `DDP(net).to(device)`."""
    while isinstance(value, cst.Call):
        if not isinstance(value.func, cst.Attribute) or not isinstance(value.func.value, cst.Call):
            return value.func
        value = value.func.value
    return None

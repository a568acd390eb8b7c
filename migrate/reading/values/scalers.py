"""Names of a script that hold a gradient scaler, by their use, otherwise by their name."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue.words import SCALER
from migrate.reading.names.dead_branches import constant
from migrate.syntax.tree import code, keyword

if TYPE_CHECKING:
    from migrate.reading.names.parsed import Parsed

SCALE = "_scale"


def is_scaler(node: cst.BaseExpression, context: Parsed) -> bool:
    """Whether `node`, a name or an attribute, holds a gradient scaler."""
    named = SCALER.fullmatch(code(node).rpartition(".")[2]) is not None
    return named or is_used_as_scaler(node, context)


def is_used_as_scaler(node: cst.BaseExpression, context: Parsed) -> bool:
    """Whether the script calls `node.unscale_(…)` or `node.scale(loss).backward()`."""
    return code(node) in _used(context)


def scale_read(call: cst.CSTNode, context: Parsed) -> cst.Attribute | None:
    """Return `scaler._scale` of `scaler._scale.item()` or `float(scaler._scale)`; None for other calls."""
    match call:
        case cst.Call(
            func=cst.Attribute(value=cst.Attribute() as held, attr=cst.Name("item")), args=[]
        ):
            pass
        case cst.Call(func=cst.Name("float"), args=[cst.Arg(value=cst.Attribute() as held)]):
            pass
        case _:
            return None
    return held if held.attr.value == SCALE and is_scaler(held.value, context) else None


@lru_cache(maxsize=2)  # the last ones: each statement of a script asks
def _used(context: Parsed) -> frozenset[str]:
    """Return the objects with calls `x.unscale_(…)` and `x.scale(loss).backward()` in the script."""
    names = set()
    for call in context.all_of(cst.Call):
        func = call.func
        if not isinstance(func, cst.Attribute):
            continue
        scaled = func.value
        if func.attr.value == "unscale_":
            names.add(code(scaled))
        elif (
            func.attr.value == "backward"
            and isinstance(scaled, cst.Call)
            and isinstance(scaled.func, cst.Attribute)
            and scaled.func.attr.value == "scale"
        ):
            names.add(code(scaled.func.value))
    return frozenset(names)


def is_switched_off(call: cst.Call, script: Parsed) -> bool:
    """Whether `call` makes a scaler with a constant false `enabled=`: its calls pass through."""
    enabled = keyword(call, "enabled")
    return enabled is not None and is_off(enabled.value, script)


def is_off(enabled: cst.BaseExpression, script: Parsed) -> bool:
    """Whether the `enabled` argument of a scaler is a false constant."""
    value = constant(enabled, script)
    return value is not None and not value[0]

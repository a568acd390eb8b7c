"""Calls that create tensors, in page-locked memory on request: that raises without a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue.words import MADE_ON_HOST, words

if TYPE_CHECKING:
    from migrate.reading.names.parsed import Parsed

NEW = words("new_empty new_full new_ones new_tensor new_zeros")


def makes_tensor(call: cst.Call, context: Parsed) -> bool:
    """Whether `call` creates a tensor and accepts `pin_memory`: `torch.empty(…)`, `x.new_empty(…)`."""
    if context.qualified_name(call.func) == "functools.partial":
        return bool(call.args) and _is_factory(call.args[0].value, context)
    return _is_factory(call.func, context)


def _is_factory(function: cst.BaseExpression, context: Parsed) -> bool:
    name = context.qualified_name(function)
    if name is None:
        return isinstance(function, cst.Attribute) and function.attr.value in NEW
    module, _, last = name.rpartition(".")
    return module == "torch" and (last in MADE_ON_HOST or last.endswith(("_like", "_window")))

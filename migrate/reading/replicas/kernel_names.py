"""Parameters that choose a kernel, of which one is called "cuda": `assert impl in ["ref", "cuda"]`.

Such a "cuda" is the name of an implementation, not a device: its caller and its tests keep it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue.words import DEVICE_NAME, words
from migrate.syntax.tree import last_part, nodes_of, string_value

if TYPE_CHECKING:
    from migrate.reading.names.parsed import Parsed

DEVICES = words("auto cpu cuda gpu hip hpu ipu meta mlu mps musa npu rocm tpu xla xpu")


def kernel_names(context: Parsed) -> Iterator[cst.CSTNode]:
    """Yield the tests of such parameters, and their defaults; also of those that are handed on to them."""
    choosing: dict[str, str] = {}  # functions, with the parameter
    for comparison in context.all_of(cst.Comparison):
        name = _chosen(comparison)
        function = context.function_around(comparison) if name is not None else None
        if name is None or function is None or (param := _parameter(function, name)) is None:
            continue
        choosing[function.name.value] = name
        yield from _default(param)
        for other in nodes_of(function.body, cst.Comparison):
            if isinstance(other.left, cst.Name) and other.left.value == name:
                yield other
    for call in context.all_of(cst.Call) if choosing else ():
        name = choosing.get(last_part(call.func))
        caller = context.function_around(call)
        if name is None or caller is None:
            continue
        for arg in call.args:
            if arg.keyword is None or arg.keyword.value != name:
                continue
            handed_on = isinstance(arg.value, cst.Name) and _parameter(caller, arg.value.value)
            if handed_on:
                yield from _default(handed_on)


def _parameter(function: cst.FunctionDef, name: str) -> cst.Param | None:
    """Return the parameter `name` of `function`, or None."""
    params = function.params
    named = (*params.posonly_params, *params.params, *params.kwonly_params)
    return next((param for param in named if param.name.value == name), None)


def _default(param: cst.Param) -> Iterator[cst.BaseExpression]:
    """Yield the default of `param` if it is "cuda"."""
    if param.default is not None and string_value(param.default) == "cuda":
        yield param.default


def _chosen(comparison: cst.Comparison) -> str | None:
    """Return the name that `comparison` looks up among "cuda" and names of no device, or None."""
    if not isinstance(comparison.left, cst.Name) or len(comparison.comparisons) != 1:
        return None
    if DEVICE_NAME.fullmatch(comparison.left.value) is not None:
        return None
    target = comparison.comparisons[0]
    among = target.comparator
    if not isinstance(target.operator, cst.In | cst.NotIn):
        return None
    if not isinstance(among, cst.List | cst.Tuple | cst.Set):
        return None
    named = {string_value(element.value) for element in among.elements}
    others = {name for name in named if name and name.partition(":")[0] not in DEVICES}
    return comparison.left.value if "cuda" in named and others else None

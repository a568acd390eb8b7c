"""Autocast regions that are float16 on CUDA, and therefore bfloat16 on XLA."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue import torch_cuda
from migrate.catalogue.entry import names
from migrate.catalogue.torch_other import TYPED_AUTOCAST
from migrate.reading.values.region_arguments import PARTIAL
from migrate.reading.values.region_types import HALF, WIDE, types_of
from migrate.syntax.tree import bind, code, string_value

if TYPE_CHECKING:
    from migrate.reading.script import Script

OF_CUDA = names(*torch_cuda.AUTOCAST)
TYPED = names(*TYPED_AUTOCAST)
SHIMS = "shims.autocast"
PARAMETERS = {
    **dict.fromkeys(OF_CUDA, ("enabled", "dtype", "cache_enabled")),
    **dict.fromkeys(TYPED, ("device_type", "dtype", "enabled", "cache_enabled")),
    SHIMS: ("dtype", "enabled", "cache_enabled"),
}
# Devices whose regions are not CUDA regions.
OTHERS = frozenset({"cpu", "mps", "xla", "xpu"})
DEEPEST = 4


@dataclass(frozen=True, eq=False)
class AutocastRegion:
    """Autocast region.

    Args:
        path, line: the file, and the line of the expression that makes the region.
        half: whether the region is float16 on CUDA, unless something is known to change that.
        narrow: whether the region is bfloat16 on XLA: float16 or bfloat16, and not surely switched off.
    """

    path: Path
    line: int
    half: bool
    narrow: bool = True


def region_around(node: cst.CSTNode, context: Script) -> AutocastRegion | None:
    """Return the innermost autocast region of the function around `node` that `node` runs in."""
    below = node
    for above in context.ancestors(node):
        if isinstance(above, cst.With) and below is above.body:
            for item in reversed(above.items):
                if (region := _region(item.item, context)) is not None:
                    return region
        elif isinstance(above, cst.FunctionDef):
            if below is not above.body:
                return None  # a default, or a decorator
            decorators = (_region(decorator.decorator, context) for decorator in above.decorators)
            return next((region for region in decorators if region is not None), None)
        elif isinstance(above, cst.Lambda | cst.ClassDef):
            return None
        below = above
    return None


def is_region(block: cst.With, context: Script) -> bool:
    """Whether `block` is an autocast region."""
    return any(_region(item.item, context) is not None for item in block.items)


def _region(node: cst.BaseExpression, context: Script, depth: int = 0) -> AutocastRegion | None:
    """Return the region that `node` is: an autocast call, or a name bound to such a call."""
    if depth > DEEPEST:
        return None
    candidates: list[AutocastRegion] = []
    if isinstance(node, cst.Call):
        if (region := _of_call(node, node, context)) is not None:
            return region
        for function in _functions(node.func, context):
            if isinstance(function, cst.Call):  # functools.partial(autocast, …)
                region = _of_call(function, node, context)
            else:
                region = _of_call(node.with_changes(func=function), node, context)
            candidates += [region] if region is not None else []
    elif isinstance(node, cst.Name):
        values = context.bound_values(node)
        regions = (
            _region(value, context, depth + 1)
            for value in values
            if isinstance(value, cst.BaseExpression)
        )
        candidates = [region for region in regions if region is not None]
    halves = [region for region in candidates if region.half]
    return next(iter(halves or candidates), None)


def _functions(func: cst.BaseExpression, context: Script) -> Iterator[cst.BaseExpression]:
    """Yield the values of the name `func` that are autocast or bind its arguments."""
    if not isinstance(func, cst.Name):
        return
    waiting = list(context.bound_values(func))
    for value in waiting:
        if isinstance(value, cst.IfExp):
            waiting += [value.body, value.orelse]
        elif isinstance(value, cst.Name | cst.Attribute | cst.Call):
            yield value


def _of_call(call: cst.Call, maker: cst.Call, context: Script) -> AutocastRegion | None:
    func, args = call.func, list(call.args)
    if context.qualified_name(func) == PARTIAL and args:
        func, args = args[0].value, [*args[1:], *(maker.args if maker is not call else ())]
    name = context.qualified_name(func)
    if name not in PARAMETERS:
        return None
    plain = [arg for arg in args if not arg.star]
    bound = bind(call.with_changes(args=plain), PARAMETERS[name])
    half = bound is not None and _is_half(name, bound, len(plain) < len(args), context)
    narrow = bound is None or _is_narrow(bound, context)
    return AutocastRegion(context.file, context.position(maker).line, half, narrow)


def _is_half(name: str, bound: dict[str, cst.Arg], more: bool, context: Script) -> bool:
    """Whether autocast with these arguments is float16 on CUDA and not switched off."""
    if "enabled" in bound and code(bound["enabled"].value) == "False":
        return False
    device = bound.get("device_type")
    if device is not None and (string_value(device.value) or "").partition(":")[0] in OTHERS:
        return False
    if "dtype" not in bound:
        return name != SHIMS and not more
    types = types_of(bound["dtype"].value, context)
    return types is not None and any(context.qualified_name(dtype) in HALF for dtype in types)


def _is_narrow(bound: dict[str, cst.Arg], context: Script) -> bool:
    """Whether autocast with these arguments computes in 16 bits on XLA, as far as is known."""
    if "enabled" in bound and code(bound["enabled"].value) == "False":
        return False
    device = bound.get("device_type")
    if device is not None:
        kind = (string_value(device.value) or "").partition(":")[0]
        if kind in OTHERS and kind != "xla":
            return False
    types = types_of(bound["dtype"].value, context) if "dtype" in bound else None
    return types is None or any(context.qualified_name(dtype) not in WIDE for dtype in types)

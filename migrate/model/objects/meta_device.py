"""The device "meta": its tensors have no values, and moves from and to it replace parameters on CUDA, too."""

from __future__ import annotations

import ast

from migrate.model.calls.analysis import Analysis
from migrate.model.calls.rank_tests import last_part
from migrate.model.calls.scopes import Scope

MOST_NAMES = 3  # maximum number of names followed to a device


def is_meta(node: ast.expr, scope: Scope, analysis: Analysis, depth: int = MOST_NAMES) -> bool:
    """Whether `node` names the device "meta", or is a context that creates modules there."""
    match node:
        case ast.Constant(value=value):
            return value == "meta"
        case ast.Call(func=func, args=args, keywords=keywords):
            name = last_part(func)
            if name == "init_empty_weights":
                return True
            devices = [*args[:1], *(k.value for k in keywords if k.arg in ("type", "device"))]
            is_device = name in ("device", "init_on_device")
            return is_device and any(is_meta(d, scope, analysis, depth) for d in devices)
        case ast.Name(id=name) if depth:
            bindings = list(analysis.evaluator.bindings_of(name, scope))
            return bool(bindings) and all(
                binding.kind == "value"
                and binding.value is not None
                and is_meta(binding.value, binding.scope, analysis, depth - 1)
                for binding in bindings
            )
    return False


def is_to_meta(call: ast.Call, scope: Scope, analysis: Analysis) -> bool:
    """Whether `call` moves its receiver to the device "meta": `model.to("meta")`."""
    if last_part(call.func) not in ("to", "to_empty"):
        return False
    devices = [*call.args[:1], *(k.value for k in call.keywords if k.arg == "device")]
    return any(is_meta(device, scope, analysis) for device in devices)

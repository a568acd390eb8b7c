"""Values with which a backward pass starts: each replica has its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue.words import METRIC, ONLY_TENSORS
from migrate.model.calls.effect import Effect
from migrate.syntax.tree import last_part

if TYPE_CHECKING:
    from migrate.reading.script import Script

# Methods of tensors whose result is a tensor, too.
OF_TENSORS = ONLY_TENSORS | {
    "clone",
    "cpu",
    "double",
    "float",
    "max",
    "mean",
    "min",
    "squeeze",
    "sum",
}


def has_gradients(value: cst.CSTNode, script: Script) -> bool:
    """Whether `value` is, or is made of, a variable with which a backward pass starts: `loss.backward()`."""
    while isinstance(value, cst.Call) and last_part(value.func) in OF_TENSORS:
        if not isinstance(value.func, cst.Attribute):
            return False
        value = value.func.value
    if not isinstance(value, cst.Name) or script.values.bindings.nearest(value) is None:
        return False
    function = script.function_around(value)
    return any(
        script.function_around(mention) is function and _is_backward(mention, script)
        for mention in script.mentions(value)
    )


def _is_backward(mention: cst.CSTNode, script: Script) -> bool:
    """Whether a backward pass starts with `mention`: also `scaler.scale(loss).backward()`.

    Or `loss_scaler(loss, optimizer)`: the first argument, called a loss, of a call that makes one.
    """
    node, above = mention, script.parent(mention)
    call = script.parent(above)
    if isinstance(above, cst.Arg) and isinstance(call, cst.Call) and call.args[0] is above:
        named = isinstance(mention, cst.Name) and METRIC.fullmatch(mention.value) is not None
        if named and Effect.BACKWARD in script.effects.of(call):
            return True
    while isinstance(above, cst.Arg | cst.Call | cst.BinaryOperation):
        if isinstance(above, cst.Call) and last_part(above.func) == "backward":
            return True
        node, above = above, script.parent(above)
    return (
        isinstance(above, cst.Attribute) and above.value is node and above.attr.value == "backward"
    )

"""Find the saves of a gradient scaler's state, for scalers that the script receives from elsewhere."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TypeGuard

import libcst as cst

from migrate.reading.values.scalers import is_scaler, is_switched_off
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import string_value


def empty_states(
    disabled: Sequence[cst.Call], kinds: Collection[str], context: Workspace
) -> Iterator[cst.Call]:
    """Yield the calls of `state_dict` on a disabled scaler, or on a parameter that is one by its name.

    Args:
        disabled: the calls that make the scalers.
        kinds: the qualified names of the classes of scalers.
        context: the script.
    """
    calls = set(disabled)
    # Made disabled: the CUDA script saves an empty state too.
    names = {
        name
        for call in calls
        if not is_switched_off(call, context) and (name := _kept_as(call, context))
    }
    for call in context.all_of(cst.Call):
        if not isinstance(call.func, cst.Attribute) or call.func.attr.value != "state_dict":
            continue
        holder = call.func.value
        if isinstance(holder, cst.Attribute):
            if holder.attr.value in names:
                yield call
        elif isinstance(holder, cst.Name):
            _, value = context.bound_to(holder)
            if isinstance(value, cst.Param):
                if _is_scaler(value, kinds, context):
                    yield call
            elif holder.value in names and (value is None or _makes(value, calls)):
                yield call
            elif takes_scale(context.parent(call)) and is_scaler(holder, context):
                yield call  # one that a class of the script, or of another file, keeps


def takes_scale(node: cst.CSTNode | None) -> TypeGuard[cst.Subscript]:
    """Whether `node` takes the scale: `scaler.state_dict()["scale"]`."""
    if not isinstance(node, cst.Subscript) or len(node.slice) != 1:
        return False
    index = node.slice[0].slice
    return isinstance(index, cst.Index) and string_value(index.value) == "scale"


def _kept_as(call: cst.Call, context: Workspace) -> str | None:
    """Name of the variable or attribute under which the script keeps what it has created."""
    above = context.parent(call)
    while isinstance(above, cst.IfExp | cst.BooleanOperation):
        above = context.parent(above)
    target: cst.BaseExpression | None = None
    if isinstance(above, cst.Assign) and len(above.targets) == 1:
        target = above.targets[0].target
    elif isinstance(above, cst.AnnAssign):
        target = above.target
    if isinstance(target, cst.Attribute):
        return target.attr.value
    return target.value if isinstance(target, cst.Name) else None


def _makes(value: cst.BaseExpression, calls: Collection[cst.Call]) -> bool:
    """Whether a value is one of the calls, possibly under a condition."""
    if isinstance(value, cst.IfExp):
        return _makes(value.body, calls) or _makes(value.orelse, calls)
    return value in calls


def _is_scaler(parameter: cst.Param, kinds: Collection[str], context: Workspace) -> bool:
    if parameter.annotation is None:
        return is_scaler(parameter.name, context)
    return any(
        context.qualified_name(node) in kinds
        for node in (parameter.annotation.annotation, *_parts(parameter.annotation.annotation))
    )


def _parts(annotation: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """Return the parts of an annotation such as `GradScaler | None` or `Optional[GradScaler]`."""
    if isinstance(annotation, cst.BinaryOperation):
        yield from (annotation.left, annotation.right)
    elif isinstance(annotation, cst.Subscript):
        for element in annotation.slice:
            if isinstance(element.slice, cst.Index):
                yield element.slice.value

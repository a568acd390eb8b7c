"""Find the saves of a gradient scaler's state, for scalers that the script receives from elsewhere."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TypeGuard

import libcst as cst

from migrate.reading.names.bindings import passed_for
from migrate.reading.names.dead_branches import constant
from migrate.reading.values.scalers import is_scaler, is_switched_off
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import keyword, string_value


def empty_states(
    disabled: Sequence[cst.Call],
    received: Collection[cst.Call],
    kinds: Collection[str],
    context: Workspace,
) -> Iterator[tuple[cst.Call, bool]]:
    """Yield the calls of `state_dict` on a disabled scaler, or on a parameter that is one by its name.

    With each, whether the original's scaler is enabled for certain: not by an option or a condition.

    Args:
        disabled: the calls that make the scalers.
        received: the calls on a parameter that holds a scaler which keeps its state.
        kinds: the qualified names of the classes of scalers.
        context: the script.
    """
    # Made disabled: the CUDA script saves an empty state too.
    calls = [call for call in disabled if not is_switched_off(call, context)]
    names = {name: _is_on(call, context) for call in calls if (name := _kept_as(call, context))}
    for call in context.all_of(cst.Call):
        if not isinstance(call.func, cst.Attribute) or call.func.attr.value != "state_dict":
            continue
        holder = call.func.value
        if isinstance(holder, cst.Attribute):
            if holder.attr.value in names:
                yield call, names[holder.attr.value]
        elif isinstance(holder, cst.Name) and call not in received:
            _, value = context.bound_to(holder)
            if isinstance(value, cst.Param):
                makers = _makers_for(holder, context)
                if _is_scaler(value, kinds, context) and not _are_off(makers, context):
                    yield call, any(maker in calls and _is_on(maker, context) for maker in makers)
            elif holder.value in names and (value is None or _makes(value, calls)):
                yield call, names[holder.value]
            elif takes_scale(context.parent(call)) and is_scaler(holder, context):
                yield call, False  # one that a class of the script, or of another file, keeps


def _is_on(call: cst.CSTNode, context: Workspace) -> bool:
    """Whether `call` makes a scaler that is enabled under all conditions."""
    if not isinstance(call, cst.Call) or isinstance(context.parent(call), cst.IfExp):
        return False
    enabled = keyword(call, "enabled")
    return enabled is None or constant(enabled.value, context) == (True,)


def _makers_for(name: cst.Name, context: Workspace) -> list[cst.CSTNode]:
    """Return what makes the variables that the calls of the script pass for a parameter."""
    passed = passed_for(name, context)
    makers = [context.bound_to(p)[1] if isinstance(p, cst.Name) else None for p in passed]
    return [value if maker is None else maker for value, maker in zip(passed, makers, strict=True)]


def _are_off(passed: Sequence[cst.CSTNode], context: Workspace) -> bool:
    """Whether all that is passed are scalers which the original switches off itself."""
    return bool(passed) and all(
        isinstance(maker, cst.Call) and is_switched_off(maker, context) for maker in passed
    )


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

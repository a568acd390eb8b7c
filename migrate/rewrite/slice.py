"""Which part of a loop's body is the training step."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst
from libcst.helpers import get_full_name_for_node

from migrate.rewrite.effects import Effect
from migrate.rewrite.tree import nodes, nodes_of, targets


def step_slice(
    statements: Sequence[cst.BaseStatement], effects: Sequence[Effect]
) -> tuple[int, int]:
    """Return the indices of the first and the last statement that belong in the step.

    From the backward pass upwards, a statement belongs if it assigns a name that a later one of the
    step uses, or clears gradients; what lies between is taken along.
    """
    backward = min(i for i, effect in enumerate(effects) if Effect.BACKWARD in effect)
    last = max(i for i, effect in enumerate(effects) if effect) if any(effects) else backward
    for index in range(last + 1, len(statements)):
        if _clears_gradients(statements[index]):
            last = index
    first = backward
    used = _names_used(statements[backward])
    for index in range(backward - 1, -1, -1):
        statement = statements[index]
        if _names_assigned(statement) & used or _clears_gradients(statement):
            first = index
            used |= _names_used(statement)
    return first, last


def _names_used(statement: cst.CSTNode) -> set[str]:
    """Return the names and dotted names in `statement`."""
    kinds = cst.Name | cst.Attribute
    found = (get_full_name_for_node(node) for node in nodes(statement) if isinstance(node, kinds))
    return {name for name in found if name is not None}


def _names_assigned(statement: cst.CSTNode) -> set[str]:
    """Return the names and dotted names that `statement` assigns; for `x[0] = 1`, `x`."""
    assigned = set()
    for target in targets(statement):
        while isinstance(target, cst.Subscript):
            target = target.value
        if name := get_full_name_for_node(target):
            assigned.add(name)
    return assigned


def _clears_gradients(statement: cst.CSTNode) -> bool:
    return any(
        isinstance(call.func, cst.Attribute) and call.func.attr.value == "zero_grad"
        for call in nodes_of(statement, cst.Call)
    )

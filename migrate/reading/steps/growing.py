"""Lists that get one more tensor in each turn of a loop, and become one tensor there; tensors that grow.

Source: torch_xla 2.9 (measured: `sum(losses)` and `torch.stack(losses)` compile for each length; a tensor
that each turn adds to does not).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue.words import words
from migrate.reading.steps.loops import Loop
from migrate.syntax.tree import code, targets

if TYPE_CHECKING:
    from migrate.reading.facts import Facts

JOINS = frozenset(f"torch.{name}" for name in words("cat concat hstack stack vstack"))
LENGTHENS = JOINS - {"torch.stack"}
EMPTIES = frozenset({"[]", "deque()", "list()"})
SHORTENS = words("clear pop popleft")


def growing_list(call: cst.Call, facts: Facts) -> cst.Name | None:
    """Return the list that `call` turns into one tensor, and that the loop around it appends to."""
    held = call.args[0].value if call.args else None
    loop = _loop_around(call, facts)
    if not isinstance(held, cst.Name) or loop is None or not _joins(call, facts):
        return None
    assignments = facts.bindings.given(held)
    if not assignments or any(
        assignment.value is None or code(assignment.value) not in EMPTIES
        for assignment in assignments
    ):
        return None
    begun = [assignment.value for assignment in assignments if assignment.value is not None]
    begun += [mention for mention in facts.context.mentions(held) if _shortens(mention, facts)]
    for node in begun:
        within = _is_in(node, loop, facts)
        if within and (_is_sometimes(call, loop, facts) or not _is_sometimes(node, loop, facts)):
            return None  # the list has the same length in each turn that reaches the call
    put = [
        stored.value
        for stored in facts.bindings.put_into(held)
        if _is_in(stored.value, loop, facts)
    ]
    return held if any(map(facts.values.is_tensor, put)) else None


def grown_tensor(call: cst.Call, facts: Facts) -> cst.BaseExpression | None:
    """Return the tensor that `call` makes longer in each turn: `ids = torch.cat((ids, next), dim=1)`.

    None if the loop gives it another value, too, as one that cuts it to its last rows does.
    """
    held = call.args[0].value if call.args else None
    assigned, loop = facts.context.parent(call), _loop_around(call, facts)
    if facts.names.of(call.func) not in LENGTHENS or loop is None or not _is_in(call, loop, facts):
        return None
    if not isinstance(held, cst.Tuple | cst.List) or not isinstance(assigned, cst.Assign):
        return None
    target = assigned.targets[0].target
    parts = [element.value for element in held.elements]
    if len(parts) < 2 or code(target) not in map(code, parts):
        return None
    others = [
        other
        for other in targets(loop)
        if other is not target and code(other) == code(target) and _is_in(other, loop, facts)
    ]
    return target if not others and any(map(facts.values.on_device, parts)) else None


def _joins(call: cst.Call, facts: Facts) -> bool:
    if facts.names.of(call.func) in JOINS:
        return True
    return code(call.func) == "sum" and not facts.context.bindings(call.func)


def _loop_around(node: cst.CSTNode, facts: Facts) -> Loop | None:
    for above in facts.context.ancestors(node):
        if isinstance(above, cst.FunctionDef | cst.Lambda | cst.ClassDef):
            return None
        if isinstance(above, cst.For | cst.While):
            return above
    return None


def _is_in(node: cst.CSTNode, loop: Loop, facts: Facts) -> bool:
    return any(above is loop.body for above in facts.context.ancestors(node))


def _is_sometimes(node: cst.CSTNode, loop: Loop, facts: Facts) -> bool:
    """Whether a condition in the turn of `loop` is around `node`."""
    for above in facts.context.ancestors(node):
        if above is loop.body:
            return False
        if isinstance(above, cst.If | cst.IfExp):
            return True
    return False


def _shortens(mention: cst.CSTNode, facts: Facts) -> bool:
    """Whether some elements leave the list, or may: `losses.clear()`, `del losses[:]`, `losses[:] = []`."""
    above = facts.context.parent(mention)
    if isinstance(above, cst.Attribute):
        return above.attr.value in SHORTENS
    if isinstance(above, cst.Subscript):
        around = facts.context.parent(above)
        return isinstance(around, cst.Del | cst.AssignTarget)
    return False

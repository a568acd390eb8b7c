"""The inputs of a step: which of them the script does not move to the device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import libcst as cst

from migrate.reading.tree.tree import base_name, nodes_of, targets
from migrate.reading.values.devices import moves
from migrate.rewrite.rules.step.steps import Step

if TYPE_CHECKING:
    from migrate.rewrite.workspace import Workspace


def unmoved_inputs(step: Step, context: Workspace) -> list[str] | str:
    """Return the names of the step's inputs to move to the device, or why that is not known."""
    names = list(step.batch)
    part = step.parts[0]
    block = [s.node for s in part.body.statements[part.first : part.last + 1]]
    used = {name.value for statement in block for name in nodes_of(statement, cst.Name)}
    places = [step.body.block, step.loop.body]
    moved = {name for place in places for name in _receivers(moves(place, context))}
    moved |= {name for place in places for name in _rebound(place, context)}
    moved |= {name for place in places for name in _given_to_mover(place, context)}
    if moved & set(names) or (step.body.block is not step.loop.body and moved):
        return []  # where the script moves some of them it knows why it leaves the others
    unmoved = [name for name in names if name in used]
    if not unmoved:
        return []
    listed = ", ".join(unmoved)
    if _receivers(_conversions(step.body.block)) & set(names):
        return f"{listed}: see that the device to which they are moved is {context.vocabulary.device_said}"
    if callees := context.effects.callees(block):
        if any(next(moves(callee.body, context), None) for callee in callees):
            return []
        return f"the script does not show where {listed} move to the device"
    if context.effects.is_marked(step.loop):
        return f"see that {listed} are on the device: they are not moved in the loop"
    if not isinstance(step.loop, cst.For) or len(names) < 2:
        return f"is `{listed}` on the device? It is not moved in the loop"
    return unmoved


def _rebound(root: cst.CSTNode, context: Workspace) -> Iterator[str]:
    """Yield the names bound to something that is moved: `x = [part.cuda() for part in x]`."""
    for assign in nodes_of(root, cst.Assign):
        if next(moves(assign.value, context), None) is not None:
            yield from (name for name in _targets(assign) if name)


def _given_to_mover(root: cst.CSTNode, context: Workspace) -> Iterator[str]:
    """Yield the names that are given to a function which moves something: `to_device(batch, device)`."""
    for call in nodes_of(root, cst.Call):
        if context.effects.moves(call) and not context.effects.of(call):
            yield from (name.value for arg in call.args for name in nodes_of(arg, cst.Name))


def _targets(assign: cst.Assign) -> Iterator[str | None]:
    return (base_name(target) for target in targets(assign))


def _receivers(calls: Iterable[cst.Call]) -> set[str]:
    """Return the names in what the methods `calls` are called on."""
    return {name.value for call in calls for name in nodes_of(call.func, cst.Name)}


def _conversions(root: cst.CSTNode) -> Iterator[cst.Call]:
    """Yield the calls of a method `to`: to a device or a dtype."""
    for call in nodes_of(root, cst.Call):
        if isinstance(call.func, cst.Attribute) and call.func.attr.value == "to":
            yield call

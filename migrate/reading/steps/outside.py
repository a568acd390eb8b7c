"""Statements that stay outside of a step: evaluation, saves, logging, code of one replica, timers."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import libcst as cst
from libcst.helpers import get_full_name_for_node

from migrate.catalogue.words import CLOCKS, EVALUATION, SAVE, SCHEDULE, WAITS
from migrate.model.calls.kind import Kind
from migrate.reading.flow.reads import DeviceReads, is_log
from migrate.reading.values.device_values import DeviceValues
from migrate.syntax.tree import code, last_part, nodes, nodes_of
from migrate.syntax.walk import children

if TYPE_CHECKING:
    from migrate.reading.script import Script


class Outside(StrEnum):
    """Reason why a statement stays outside of the step."""

    GUARD = "code of some of the replicas"
    SAVE = "a save"
    EVALUATION = "an evaluation"
    READ = "a value that is read"
    LOG = "logging"
    SYNC = "a wait for the device"
    TIMER = "a timer"
    SCHEDULE = "the learning rate"
    STEPS = "a loop with steps of its own"


def why_outside(
    statement: cst.BaseStatement,
    values: DeviceValues,
    context: Script,
    computing: frozenset[int] = frozenset(),
) -> Outside | None:
    """Return why `statement` stays outside of the step, or None.

    The calls with an id in `computing` only compute, whatever their names say.
    """
    if _has_steps(statement, context):
        return Outside.STEPS
    for test in (node.test for node in context.below(statement, cst.If)):
        if context.guards.asks(test):
            return Outside.GUARD
    calls = _calls(statement)
    names = [
        last_part(call.func)
        for call in calls
        if id(call) not in computing and not _is_computation(call, context)
    ]
    if any(SAVE.fullmatch(name) for name in names):
        return Outside.SAVE
    if any(EVALUATION.fullmatch(name) for name in names):
        return Outside.EVALUATION
    if next(DeviceReads(values, context).inside(statement), None) is not None:
        return Outside.READ
    if any(is_log(call, context) for call in calls):
        return Outside.LOG
    qualified = {context.qualified_name(call.func) for call in calls}
    if qualified & WAITS:
        return Outside.SYNC
    if qualified & CLOCKS:
        return Outside.TIMER
    return Outside.SCHEDULE if _schedules(statement, calls) else None


def _has_steps(statement: cst.BaseStatement, context: Script) -> bool:
    """Whether `statement`, or a function it calls, contains a loop that trains."""
    effects = context.effects
    loops = nodes_of(statement, cst.For | cst.While)  # type: ignore[arg-type]
    return any(effects.is_step_loop(loop) for loop in loops) or any(
        effects.has_steps(call) for call in _calls(statement)
    )


def _calls(statement: cst.CSTNode) -> list[cst.Call]:
    """Return the calls that running `statement` makes, without those of functions it defines."""
    calls = []
    stack = [statement]
    while stack:
        node = stack.pop()
        if isinstance(node, cst.FunctionDef | cst.ClassDef | cst.Lambda):
            continue
        if isinstance(node, cst.Call):
            calls.append(node)
        stack.extend(children(node))
    return calls


def _is_computation(call: cst.Call, context: Script) -> bool:
    """Whether the function only has such a name: torch's `checkpoint`, the project's `inference(model, x)`.

    A function of the project counts if it runs a model once and reads nothing: an evaluation reads. A module
    counts too, as in `self.test_criterion = nn.CrossEntropyLoss()`.
    """
    if context.place(call) in context.calls.forwarding:
        return True
    if context.place(call.func) in context.calls.models:
        return True
    if context.values.kind(call.func) is Kind.MODEL:
        return True
    name = context.qualified_name(call.func) or ""
    return name.startswith("torch.") and name != "torch.save"


def _schedules(statement: cst.CSTNode, calls: list[cst.Call]) -> bool:
    if any(
        isinstance(n, cst.Attribute) and n.attr.value == "param_groups" for n in nodes(statement)
    ):
        return True
    for call in calls:
        name = get_full_name_for_node(call.func) or code(call.func)
        if any(SCHEDULE.fullmatch(part) for part in name.split(".")):
            return True
    return False

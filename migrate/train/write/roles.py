"""Functions of the script that run its training, and what each of them does of it."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from migrate.train.frames import Frame
from migrate.train.slice.loops import TrainingCalls, loop_level, outermost_level
from migrate.train.slice.text import FunctionNode, ScriptText
from migrate.train.watch.calls import OTHER, SeenCall
from migrate.train.write.functions import (
    APPLY,
    GRADIENT,
    LOOP,
    OPTIMIZER,
    PART,
    SCHEDULE,
    UPDATE,
    Role,
)


def training_roles(
    script: ScriptText, events: TrainingCalls, recorded: Mapping[str, Any]
) -> dict[str, Role]:
    """Return the functions that train, by their qualified names.

    Args:
        script: the script.
        events: where it trains.
        recorded: the recorded run.
    """
    roles: dict[str, Role] = {}
    level = loop_level(script, events.backward)
    outermost = outermost_level(script, events.backward)
    positions = {(frame.function, frame.first): n for n, frame in enumerate(events.backward)}
    single = all(len(update["micro"]) == 1 for update in recorded["updates"])
    for call in recorded["frames"]:
        at = positions.get((call.function.rpartition(".")[2], call.first))
        if at is None:
            continue
        steps = all(
            any(
                (f.function, f.first) == (call.function.rpartition(".")[2], call.first)
                for f in step
            )
            for step in events.steps
        )
        if at >= level:
            roles[call.function] = Role(LOOP if at >= outermost else PART, call)
        elif not steps:
            roles[call.function] = Role(GRADIENT, call)
        elif single:
            roles[call.function] = Role(UPDATE, call)
    for step in events.steps:
        frame = step[0]
        owner = _owner(script, frame) if (frame.function, frame.first) not in positions else ""
        gradients = [name for name, role in roles.items() if role.kind == GRADIENT]
        if owner and any(name.rpartition(".")[0] == owner for name in gradients):
            name = f"{owner}.{frame.function}"
            roles[name] = Role(APPLY, SeenCall(name, frame.first, {"self": (OTHER, None)}))
    builds = ((OPTIMIZER, recorded.get("builder")), (SCHEDULE, recorded.get("schedule_builder")))
    for kind, call in builds:
        # A function that does more than to build it returns something else.
        if call is not None and call.function not in roles and _builds(script, call.first, kind):
            roles[call.function] = Role(kind, call)
    return roles


def _owner(script: ScriptText, frame: Frame) -> str:
    """Class whose method without further parameters a frame runs; "" if it runs none."""
    code = script.code(frame.first, frame.function)
    for node in ast.walk(script.tree):
        if isinstance(node, ast.ClassDef) and any(member is code for member in node.body):
            assert isinstance(code, FunctionNode)
            return node.name if [a.arg for a in code.args.args] == ["self"] else ""
    return ""


def _builds(script: ScriptText, first: int, kind: str) -> bool:
    """Whether a function returns what it has built by a call, or keeps it in attributes alone."""
    for node in ast.walk(script.tree):
        if not isinstance(node, FunctionNode):
            continue
        if min([node.lineno, *(d.lineno for d in node.decorator_list)]) != first:
            continue
        returns = [n.value for n in ast.walk(node) if isinstance(n, ast.Return)]
        if not returns:
            return kind == OPTIMIZER and node.name != "__init__"
        return kind == SCHEDULE and all(isinstance(value, ast.Call) for value in returns)
    return False

"""Statements of the training loop that the program does not have."""

from __future__ import annotations

import ast
from collections.abc import Collection

from migrate.train.slice.data import DataSlice
from migrate.train.slice.loops import TrainingCalls
from migrate.train.slice.loss import LossSlice
from migrate.train.slice.text import ScriptText, blocks, first_line, loads, path_to

_LOOPS = ast.For | ast.While | ast.AsyncFor


def left_statements(
    script: ScriptText,
    data: DataSlice,
    loss: LossSlice,
    events: TrainingCalls,
    schedules: Collection[int] = (),
    *,
    scaled: bool = False,
) -> list[str]:
    """List the statements of the loops around the training step that are left to do by hand.

    Evaluation, logs, checkpoints, averages of weights: position and first line of each. Lines that step a
    schedule (`schedules`) are in the optimizer. If the program multiplies its gradients (`scaled`),
    statements that read gradients are not left, nor those that compute numbers for them alone.
    """
    calls = {
        frame.line
        for frames in (events.backward, *events.steps, *events.dropped)
        for frame in frames
    }
    known = {*data.kept, *calls, *schedules} | {
        line for first, last in loss.lines for line in range(first, last + 1)
    }
    left: list[ast.stmt] = []
    for frame in events.backward:
        code = script.code(frame.first, frame.function)
        path = path_to(code, frame.line) if code is not None else []
        loops = [block[index] for block, index in path[:-1] if isinstance(block[index], _LOOPS)]
        body = [s for b in blocks(loops[0]) for s in b] if loops else []
        if not loops and frame is events.backward[0]:
            body = getattr(code, "body", [])  # the training step is a function of its own
        for statement in body:
            _collect(statement, known, left)
    if scaled:
        left = _without_scaling(left)
    lines = [first_line(statement) for statement in left]
    return [f"{script.at(line)}: {script.lines[line - 1].strip()}" for line in dict.fromkeys(lines)]


def _without_scaling(left: list[ast.stmt]) -> list[ast.stmt]:
    """Leave out what reads gradients, and what computes numbers for that."""
    read: set[str] = set()
    while True:
        rest = [
            statement
            for statement in left
            if not any(
                isinstance(n, ast.Attribute) and n.attr == "grad" for n in ast.walk(statement)
            )
            and not (_stored(statement) and _stored(statement) <= read)
        ]
        known = set[str]().union(*(loads(s) for s in left if s not in rest))
        if known <= read:
            return rest
        read |= known


def _stored(statement: ast.stmt) -> set[str]:
    """Names, and texts of attributes and items, that a statement stores."""
    targets = (n for n in ast.walk(statement) if isinstance(getattr(n, "ctx", None), ast.Store))
    return {ast.unparse(target) for target in targets}


def _collect(statement: ast.stmt, known: set[int], left: list[ast.stmt]) -> None:
    lines = set(range(first_line(statement), (statement.end_lineno or 0) + 1))
    inner = [child for block in blocks(statement) for child in block]
    if inner and lines & known:
        for child in inner:
            _collect(child, known, left)
        return
    if lines & known or _is_text(statement) or isinstance(statement, ast.Return | ast.Pass):
        return
    left.append(statement)


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)

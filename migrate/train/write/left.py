"""Statements of the training loop that the program does not have."""

from __future__ import annotations

import ast
from collections.abc import Collection

from migrate.train.slice.data import DataSlice
from migrate.train.slice.loops import TrainingCalls
from migrate.train.slice.loss import LossSlice
from migrate.train.slice.text import ScriptText, blocks, first_line, path_to

_LOOPS = ast.For | ast.While | ast.AsyncFor


def left_statements(
    script: ScriptText,
    data: DataSlice,
    loss: LossSlice,
    events: TrainingCalls,
    schedules: Collection[int] = (),
) -> list[str]:
    """List the statements of the loops around the training step that are left to do by hand.

    Evaluation, logs, checkpoints, averages of weights: position and first line of each. Lines that step a
    schedule (`schedules`) are in the optimizer.
    """
    calls = {
        frame.line
        for frames in (events.backward, *events.steps, *events.dropped)
        for frame in frames
    }
    known = {*data.kept, *calls, *schedules} | {
        line for first, last in loss.lines for line in range(first, last + 1)
    }
    left: list[str] = []
    for frame in events.backward:
        code = script.code(frame.first, frame.function)
        path = path_to(code, frame.line) if code is not None else []
        loops = [block[index] for block, index in path[:-1] if isinstance(block[index], _LOOPS)]
        body = [s for b in blocks(loops[0]) for s in b] if loops else []
        if not loops and frame is events.backward[0]:
            body = getattr(code, "body", [])  # the training step is a function of its own
        for statement in body:
            _collect(script, statement, known, left)
    return list(dict.fromkeys(left))


def _collect(script: ScriptText, statement: ast.stmt, known: set[int], left: list[str]) -> None:
    lines = set(range(first_line(statement), (statement.end_lineno or 0) + 1))
    inner = [child for block in blocks(statement) for child in block]
    if inner and lines & known:
        for child in inner:
            _collect(script, child, known, left)
        return
    if lines & known or _is_text(statement) or isinstance(statement, ast.Return | ast.Pass):
        return
    shown = script.lines[first_line(statement) - 1].strip()
    left.append(f"{script.at(first_line(statement))}: {shown}")


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)

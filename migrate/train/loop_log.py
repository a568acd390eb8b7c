"""Log lines that read more than an update: they stay in the loop of `data.py`, with values of the program."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from migrate.train.errors import TrainError
from migrate.train.slice.data import DataSlice
from migrate.train.slice.logged import (
    UPDATE,
    Logged,
    logged_values,
    norm_names,
    printing_statements,
    rate_texts,
    read_as_tensors,
    same_block,
)
from migrate.train.slice.loops import TrainingCalls
from migrate.train.slice.loss import LossSlice
from migrate.train.slice.text import ScriptText, first_line


@dataclass(frozen=True)
class LoopLog:
    """The loop with its log lines.

    Attributes:
        data: the data, with the log lines.
        values: values of an update that they read.
        lines: lines of the script that print.
        cut: cuts the data out of the script with them.
    """

    data: DataSlice
    values: tuple[str, ...]
    lines: frozenset[int]
    cut: Callable[..., DataSlice]


def loop_log(
    script: ScriptText,
    events: TrainingCalls,
    loss: LossSlice,
    recorded: Mapping[str, Any],
    cut: Callable[..., DataSlice],
    plain: DataSlice,
    norms: Collection[int],
) -> LoopLog | None:
    """Choose the log lines that the loop of `data.py` can have; None if none of them reads an update.

    A line is left out if it reads what neither the data nor the update has.

    Args:
        script: the script.
        events: where it trains.
        loss: the statements of its loss.
        recorded: the recorded run.
        cut: cuts the data out of the script.
        plain: the data without log lines.
        norms: lines that give the norm of all gradients.
    """
    words = {n.id for n in ast.walk(script.tree) if isinstance(n, ast.Name)}
    if events.backward[0].line in plain.kept or UPDATE in words:
        return None
    logged = Logged(
        logged_values(loss.result, norm_names(script, norms)),
        texts=rate_texts(script, events, recorded["trained"], recorded["schedule_lines"]),
    )
    best: DataSlice | None = None
    for statement in printing_statements(script, events):
        more = replace(logged, lines=logged.lines | {first_line(statement)})
        for tried in (more, replace(more, returns=True)):
            try:
                data = cut(logged=tried)
            except TrainError:
                continue
            if not data.rollouts and first_line(statement) in data.kept:
                best, logged = data, tried
                break
    if best is None:
        return None
    read = {
        n.id
        for n in ast.walk(ast.parse(best.text))
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
    }
    values = {name: value for name, value in logged.values.items() if name in read}
    logged = replace(logged, values=values, tensors=read_as_tensors(best.text, values))

    def again(**options: Any) -> DataSlice:
        return cut(logged=logged, **options)

    best = again()
    asked = _values(best.text)
    return LoopLog(best, asked, logged.lines, again) if asked else None


def has_one_micro_batch(script: ScriptText, events: TrainingCalls) -> bool:
    """Whether the backward and the one step of an update stand in one block."""
    backward, *steps = (frames[0] for frames in (events.backward, *events.steps))
    if [(step.function, step.first) for step in steps] != [(backward.function, backward.first)]:
        return False
    code = script.code(backward.first, backward.function)
    return same_block(code, backward.line, steps[0].line)


def _values(text: str) -> tuple[str, ...]:
    """Values of an update that a text of `data.py` asks for."""
    parts = (n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Subscript))
    asked = [
        str(part.slice.value)
        for part in parts
        if ast.unparse(part.value) == UPDATE and isinstance(part.slice, ast.Constant)
    ]
    return tuple(dict.fromkeys(asked))

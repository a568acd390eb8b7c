"""Calls of a module outside of the updates: where the loop of `data.py` gives their inputs."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from migrate.train.frames import Frame
from migrate.train.slice.loss import LossSlice
from migrate.train.slice.text import ScriptText, blocks, path_to


@dataclass(frozen=True)
class ForwardOf:
    """Call of a module in the training loop, outside of the updates.

    Attributes:
        name: name of the program's function for it.
        frame: the frame of its statement.
        values: parameter of the module's forward → expression of the argument.
    """

    name: str
    frame: Frame
    values: Mapping[str, str]

    @property
    def yielded(self) -> str:
        """The statements that give its inputs, as those of an update."""
        items = ", ".join(f"{name!r}: {value}" for name, value in self.values.items())
        return f"yield {self.name!r}, {{{items}}}\nyield {self.name!r}, None"


def find_forward(
    script: ScriptText,
    frame: Frame,
    parameters: Sequence[str],
    expressions: set[str],
    loss: LossSlice,
    name: str,
) -> ForwardOf | None:
    """Find the one call of a module in a statement of the training loop.

    Args:
        script: the script.
        frame: the frame of the statement.
        parameters: parameters of the module's forward that are passed.
        expressions: expressions of the module in the frame.
        loss: the loss after which the statement runs.
        name: name for the program's function.

    Returns:
        None if it is not the only one, has other arguments, or may run before the loss.
    """
    code = script.code(frame.first, frame.function)
    path = path_to(code, frame.line) if code is not None else []
    statement = path[-1][0][path[-1][1]] if path else None
    if statement is None or any(blocks(statement)):
        return None
    if frame.line <= max(last for _, last in loss.lines):
        return None
    calls = [
        node
        for node in ast.walk(statement)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in expressions
    ]
    inner = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
    if len(calls) != 1 or any(isinstance(node, inner) for node in ast.walk(statement)):
        return None
    [call] = calls
    if call.keywords or len(call.args) != len(parameters):
        return None
    if any(isinstance(argument, ast.Starred) for argument in call.args):
        return None
    pairs = zip(parameters, call.args, strict=True)
    return ForwardOf(name, frame, {key: ast.unparse(value) for key, value in pairs})

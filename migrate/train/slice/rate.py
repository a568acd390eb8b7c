"""The function or method of a script that gives the learning rate: `group["lr"] = get_lr(it)`."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from migrate.train.frames import Frame
from migrate.train.slice.text import ScriptText


def rate_function(script: ScriptText, frames: Sequence[Frame]) -> tuple[str, str] | None:
    """Return the function's dotted name and the name that it is called with, if the loop sets rates so.

    Args:
        script: the script.
        frames: frames of its backward.
    """
    for frame in frames:
        code = script.code(frame.first, frame.function)
        if code is None:
            continue
        for node in ast.walk(code):
            if isinstance(node, ast.Assign) and is_rate(node.targets[0]):
                call = _call(code, node.value)
                if call is not None:
                    return call
    return None


def is_rate(target: ast.expr) -> bool:
    """Whether an assignment to `target` sets a learning rate: `group["lr"] = …`."""
    return (
        isinstance(target, ast.Subscript)
        and isinstance(target.slice, ast.Constant)
        and target.slice.value == "lr"
    )


def _call(code: ast.AST, value: ast.expr) -> tuple[str, str] | None:
    """The call of a function with one name, in the value or in what the value's name is bound to."""
    values = [value]
    if isinstance(value, ast.Name):
        values = [
            node.value
            for node in ast.walk(code)
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id == value.id
        ]
    for candidate in values:
        for node in ast.walk(candidate):
            if (
                isinstance(node, ast.Call)
                and all(part.isidentifier() for part in ast.unparse(node.func).split("."))
                and len(node.args) == 1
                and isinstance(node.args[0], ast.Name)
                and not node.keywords
            ):
                return ast.unparse(node.func), node.args[0].id
    return None

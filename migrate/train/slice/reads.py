"""Names of attributes and globals that the code of a loss reads, in all functions that it may call."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from migrate.train.frames import Frame
from migrate.train.slice.loss import LossSlice
from migrate.train.slice.text import FunctionNode, ScriptText, free_names


def read_names(
    script: ScriptText, loss: LossSlice, running: Iterable[Frame] = ()
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Attributes, and global variables, that the statements and functions of the script they call read.

    What is filled only, as `self.history` in `self.history.append(x)`, is not read. A function
    counts as called if its name is read; `forward` and `__call__` always count. The statements'
    own free names are not among the global variables.

    Args:
        script: the script.
        loss: the statements.
        running: frames that run while the loss is computed: their functions, the `__call__` of a trainer
            with the training loop among them, are not called by it.
    """
    around = {script.code(frame.first, frame.function) for frame in running}
    functions: dict[str, list[ast.AST]] = {}
    for node in ast.walk(script.tree):
        if isinstance(node, FunctionNode) and node not in around:
            functions.setdefault(node.name, []).append(node)
    pending: list[ast.AST] = [ast.parse(loss.text), ast.parse(loss.result)]
    pending += [node for name in ("forward", "__call__") for node in functions.pop(name, [])]
    attributes: set[str] = set()
    variables: set[str] = set()
    while pending:
        code = pending.pop()
        filled = set(_filled(code))
        nodes = [node for node in ast.walk(code) if node not in filled]
        read = {n.id for n in nodes if isinstance(n, ast.Name) and _is_read(n)}
        held = {n.attr for n in nodes if isinstance(n, ast.Attribute) and _is_read(n)}
        if isinstance(code, FunctionNode):
            only = {n.id for n in filled if isinstance(n, ast.Name)} - read
            variables |= free_names(code) - only
        attributes |= held
        for name in sorted(read | held):
            pending += functions.pop(name, [])
    return tuple(sorted(attributes)), tuple(sorted(variables))


def _is_read(node: ast.Name | ast.Attribute) -> bool:
    return isinstance(node.ctx, ast.Load)


def _filled(code: ast.AST) -> Iterator[ast.AST]:
    """Yield the containers that statements fill: `x` in `x.append(1)` and in `x["a"] = 1`."""
    for node in ast.walk(code):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            if isinstance(node.value.func, ast.Attribute):
                yield node.value.func.value
        elif isinstance(node, ast.Assign):
            yield from (t.value for t in node.targets if isinstance(t, ast.Subscript))

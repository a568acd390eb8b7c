"""Methods of the evaluations that compute what a method of the step computes: they call that method."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator

from migrate.train.slice.text import first_line
from migrate.train.write.split import EVALUATION, STEP

# Parameters up to which all orders are tried.
_MOST = 5


def without_repeats(evaluations: str, loss: str) -> str:
    """Return the source of the evaluations, with calls in place of repeated statements.

    Args:
        evaluations: source of the class of the evaluations.
        loss: source of the step.
    """
    own = list(_methods(loss, STEP))
    lines = evaluations.splitlines()
    for method in sorted(_methods(evaluations, EVALUATION), key=lambda node: -node.lineno):
        call = next(filter(None, (_call(method, known) for known in own)), "")
        if call:
            body = method.body[0]
            indent = " " * body.col_offset
            lines[first_line(body) - 1 : method.end_lineno] = [f"{indent}return {call}"]
    return _with_needed("\n".join(lines) + "\n")


def _with_needed(source: str) -> str:
    """The source, which imports of `loss.py` what it reads."""
    tree, lines = ast.parse(source), source.splitlines()
    read = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    for node in reversed(tree.body):
        if isinstance(node, ast.ImportFrom) and node.module == "loss":
            needed = [alias.name for alias in node.names if alias.name in read]
            text = [f"from loss import {', '.join(needed)}"] if needed else []
            lines[node.lineno - 1 : node.end_lineno] = text
    return "\n".join(lines) + "\n"


def _methods(source: str, name: str) -> Iterator[ast.FunctionDef]:
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            yield from (
                m for m in node.body if isinstance(m, ast.FunctionDef) and m.name != "setup"
            )


def _call(method: ast.FunctionDef, known: ast.FunctionDef) -> str:
    """A call of a known method that gives what a method computes; "" if it gives something else."""
    own, theirs = (_parameters(node) for node in (method, known))
    shared = [name for name in own if name in theirs]
    differ = [name for name in own if name not in shared]
    others = [name for name in theirs if name not in shared]
    bound = {n.id for n in ast.walk(method) if isinstance(n, ast.Name)} - {*own}
    if len(differ) != len(others) or len(differ) > _MOST or bound & {*others}:
        return ""
    expected = _body(known, {})
    for order in itertools.permutations(differ):
        names = dict(zip(order, others, strict=True))
        if _body(method, names) == expected:
            back = {theirs: own for own, theirs in names.items()}
            only = {a.arg for a in known.args.kwonlyargs}
            each = [(name, back.get(name, name)) for name in theirs]
            passed = ", ".join(f"{name}={value}" if name in only else value for name, value in each)
            function = "self" if known.name == "__call__" else f"self.{known.name}"
            return f"{function}({passed})"
    return ""


def _parameters(node: ast.FunctionDef) -> list[str]:
    return [a.arg for a in (*node.args.args, *node.args.kwonlyargs)][1:]


def _body(node: ast.FunctionDef, names: dict[str, str]) -> str:
    """The statements of a method with other names of parameters, in messages too."""
    text = "\n".join(map(ast.unparse, node.body))
    if not names:
        return text
    pattern = "|".join(map(re.escape, names))
    return re.sub(rf"\b({pattern})\b", lambda match: names[match[1]], text)

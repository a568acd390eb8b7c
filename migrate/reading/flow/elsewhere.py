"""Functions of other files that write into tensors, or make a collective."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

import libcst as cst

from migrate.reading.facts import Facts
from migrate.reading.flow.computing import WRITING
from migrate.reading.flow.pending_values import ENDS
from migrate.reading.tree.unwarned import syntax_tree
from migrate.reading.values.collectives import TENSORS


def changes_elsewhere(call: cst.Call, facts: Facts) -> bool:
    """Whether `call` runs a function of another file that writes into tensors."""
    here = facts.context.file
    return any(
        one.path != here and one.line in _writing_lines(one.path)
        for one in facts.context.run_by(call)
    )


@lru_cache(maxsize=256)
def _functions(path: Path) -> Mapping[int, ast.FunctionDef]:
    try:
        tree = syntax_tree(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return {}
    return {one.lineno: one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)}


@lru_cache(maxsize=256)
def _writing_lines(path: Path) -> frozenset[int]:
    """Return the lines of the functions in the file `path` that write into tensors."""
    return frozenset(
        line
        for line, function in _functions(path).items()
        if any(name in WRITING for name in _called_names(function))
    )


def has_collective(path: Path, line: int) -> bool:
    """Whether the function at `line` of the file `path` may make a collective of tensors."""
    function = _functions(path).get(line)
    return function is None or any(name in TENSORS for name in _called_names(function))


def has_read(path: Path, line: int) -> bool:
    """Whether the function at `line` of the file `path` reads a value, or ends the graph."""
    function = _functions(path).get(line)
    return function is not None and any(name in ENDS for name in _called_names(function))


def _called_names(function: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            yield (
                node.func.attr
                if isinstance(node.func, ast.Attribute)
                else getattr(node.func, "id", "")
            )

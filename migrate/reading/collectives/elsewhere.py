"""Functions of other files that write into tensors, or make a collective."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

import libcst as cst

from migrate.catalogue.words import DESCRIBES, DESCRIBING_METHODS
from migrate.model.calls.rank_tests import is_for_first, is_for_others
from migrate.reading.collectives.computing import WRITING
from migrate.reading.collectives.pending_values import ENDS
from migrate.reading.facts import Facts
from migrate.reading.values.collectives import TENSORS
from migrate.syntax.unwarned import syntax_tree


def changes_elsewhere(call: cst.Call, facts: Facts) -> bool:
    """Whether `call` runs a function of another file that writes into tensors."""
    here = facts.context.file
    return any(
        definition.path != here and definition.line in _writing_lines(definition.path)
        for definition in facts.context.run_by(call)
    )


@lru_cache(maxsize=256)
def _functions(path: Path) -> Mapping[int, ast.FunctionDef]:
    try:
        tree = syntax_tree(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return {}
    return {
        function.lineno: function
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
    }


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


@lru_cache(maxsize=256)
def used_by_some(path: Path, line: int) -> frozenset[str | int]:
    """Return the parameters that the function at `line` of `path` uses below a test for the first replica.

    Each parameter is listed by its name and by its argument index (without `self`). Reading what is known
    without the values, as `x.shape`, does not count as a use.
    """
    function = _functions(path).get(line)
    if function is None:
        return frozenset()
    names = [parameter.arg for parameter in (*function.args.posonlyargs, *function.args.args)]
    names = names[1:] if names[:1] in (["self"], ["cls"]) else names
    used = {name for node in _of_some(function.body) for name in _used(node)}
    indices: set[str | int] = {index for index, name in enumerate(names) if name in used}
    return frozenset(
        indices | (used & {*names, *(parameter.arg for parameter in function.args.kwonlyargs)})
    )


def _of_some(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of `body` that the first replica alone runs, until it ends the graph."""
    for index, statement in enumerate(body):
        if isinstance(statement, ast.If) and is_for_first(statement.test):
            yield from statement.body
        elif isinstance(statement, ast.If) and is_for_others(statement.test):
            yield from statement.orelse
            if isinstance(statement.body[-1], ast.Return):
                yield from body[index + 1 :]
                return
        elif isinstance(statement, ast.If | ast.For | ast.With):
            yield from _of_some(statement.body)
        elif _settles(statement):
            return


def _settles(statement: ast.stmt) -> bool:
    """Whether all replicas read a value in `statement`, or end the graph."""
    calls = (node for node in ast.walk(statement) if isinstance(node, ast.Call))
    return any(getattr(call.func, "attr", "") in ENDS for call in calls)


def _used(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Attribute) and node.attr in DESCRIBES:
        return
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield node.id
    for below in ast.iter_child_nodes(node):
        if isinstance(node, ast.Call) and below is node.func:
            if isinstance(below, ast.Attribute) and below.attr not in DESCRIBING_METHODS:
                yield from _used(below.value)
        else:
            yield from _used(below)


def _called_names(function: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            yield (
                node.func.attr
                if isinstance(node.func, ast.Attribute)
                else getattr(node.func, "id", "")
            )

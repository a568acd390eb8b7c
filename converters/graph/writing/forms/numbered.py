"""Turns of a loop that differ in numbers which follow from the number of the turn: `weight[:, i : i + 1]`."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from converters.graph.expression import Hole, code


class _DifferError(Exception):
    """The turns differ in more than such numbers."""


def by_number(turns: Sequence[Sequence[ast.stmt]], counter: str) -> list[ast.stmt] | None:
    """Merge the turns into one, using the number of the turn; None if they differ otherwise.

    Args:
        turns: the statements of each, in order.
        counter: the name of the number.
    """
    try:
        return [_unified(list(same), counter) for same in zip(*turns, strict=True)]
    except (_DifferError, ValueError):
        return None


def _unified(nodes: Sequence[Any], counter: str) -> Any:
    """Merge the nodes of all turns into one."""
    first = nodes[0]
    if any(type(node) is not type(first) for node in nodes):
        raise _DifferError
    if isinstance(first, list):
        if len({len(node) for node in nodes}) > 1:
            raise _DifferError
        return [_unified(same, counter) for same in zip(*nodes, strict=True)]
    if not isinstance(first, ast.AST):
        if any(node != first for node in nodes):
            raise _DifferError
        return first
    if isinstance(first, Hole):
        if any(_filling(node) != _filling(first) for node in nodes):
            raise _DifferError
        return first
    if isinstance(first, ast.Slice):
        return _slice(nodes, counter)
    if isinstance(first, ast.Constant) and any(node.value != first.value for node in nodes):
        return _number([node.value for node in nodes], counter)
    parts = {
        name: _unified([getattr(node, name, None) for node in nodes], counter)
        for name in first._fields
    }
    return type(first)(**parts)


def _filling(hole: Hole) -> tuple[type, Any, str]:
    """Key of the expression that fills a hole later."""
    return type(hole.value), hole.value, getattr(hole.value, "text", "")


def _number(values: Sequence[Any], counter: str) -> ast.expr:
    """`2 * i + 1` for the numbers 1, 3, 5, …"""
    if any(type(value) is not int for value in values):
        raise _DifferError
    start, step = values[0], values[1] - values[0]
    if any(value != start + step * turn for turn, value in enumerate(values)):
        raise _DifferError
    product = code(counter) if step == 1 else code("{step} * {i}", step=step, i=code(counter))
    if start < 0:
        return code("{i} - {start}", i=product, start=-start)
    return code("{i} + {start}", i=product, start=start) if start else product


def _slice(nodes: Sequence[ast.Slice], counter: str) -> ast.Slice:
    """A slice, of which the first has no lower bound and the last no upper one."""
    if any(isinstance(part, Hole) for node in nodes for part in ast.walk(node)):
        sides = ("lower", "upper", "step")
        return ast.Slice(
            *(_unified([getattr(node, side) for node in nodes], counter) for side in sides)
        )
    if len({ast.dump(node) for node in nodes}) == 1:
        return nodes[0]
    lower = [0 if node.lower is None else _value(node.lower) for node in nodes]
    upper = [None if node.upper is None else _value(node.upper) for node in nodes]
    known = [bound for bound in upper if bound is not None]
    if upper[-1] is None and len(known) == len(upper) - 1:
        known.append(2 * known[-1] - known[-2])
    if any(node.step is not None for node in nodes) or len(known) < len(upper):
        raise _DifferError
    return ast.Slice(_bound(lower, counter), _bound(known, counter))


def _bound(values: Sequence[Any], counter: str) -> ast.expr:
    same = all(value == values[0] for value in values)
    return ast.Constant(values[0]) if same else _number(values, counter)


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    raise _DifferError

"""Turns of a loop that differ in numbers which follow from the number of the turn: `weight[:, i : i + 1]`."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from converters.graph.expression import Hole, code


class _DifferError(Exception):
    """The turns differ in more than such numbers."""


def by_number(turns: Sequence[Sequence[ast.stmt]], counter: str) -> list[ast.stmt] | None:
    """One turn for all of them, by the number of the turn; None where they differ otherwise.

    Args:
        turns: the statements of each, in order.
        counter: the name of the number.
    """
    try:
        return [_unified(list(same), counter) for same in zip(*turns, strict=True)]
    except (_DifferError, ValueError):
        return None


def _unified(nodes: Sequence[Any], counter: str) -> Any:
    """One node for those of all turns."""
    first = nodes[0]
    if any(type(one) is not type(first) for one in nodes):
        raise _DifferError
    if isinstance(first, list):
        if len({len(one) for one in nodes}) > 1:
            raise _DifferError
        return [_unified(same, counter) for same in zip(*nodes, strict=True)]
    if not isinstance(first, ast.AST):
        if any(one != first for one in nodes):
            raise _DifferError
        return first
    if isinstance(first, Hole):
        if any(_filling(one) != _filling(first) for one in nodes):
            raise _DifferError
        return first
    if isinstance(first, ast.Slice):
        return _slice(nodes, counter)
    if isinstance(first, ast.Constant) and any(one.value != first.value for one in nodes):
        return _number([one.value for one in nodes], counter)
    made = {
        name: _unified([getattr(one, name, None) for one in nodes], counter)
        for name in first._fields
    }
    return type(first)(**made)


def _filling(hole: Hole) -> tuple[type, Any, str]:
    """What stands in its place later."""
    return type(hole.value), hole.value, getattr(hole.value, "text", "")


def _number(values: Sequence[Any], counter: str) -> ast.expr:
    """`2 * i + 1` for the numbers 1, 3, 5, …"""
    if any(type(one) is not int for one in values):
        raise _DifferError
    start, step = values[0], values[1] - values[0]
    if any(value != start + step * turn for turn, value in enumerate(values)):
        raise _DifferError
    made = code(counter) if step == 1 else code("{step} * {i}", step=step, i=code(counter))
    if start < 0:
        return code("{i} - {start}", i=made, start=-start)
    return code("{i} + {start}", i=made, start=start) if start else made


def _slice(nodes: Sequence[ast.Slice], counter: str) -> ast.Slice:
    """A slice, of which the first has no lower bound and the last no upper one."""
    if any(isinstance(part, Hole) for one in nodes for part in ast.walk(one)):
        sides = ("lower", "upper", "step")
        return ast.Slice(
            *(_unified([getattr(one, side) for one in nodes], counter) for side in sides)
        )
    if len({ast.dump(one) for one in nodes}) == 1:
        return nodes[0]
    lower = [0 if one.lower is None else _value(one.lower) for one in nodes]
    upper = [None if one.upper is None else _value(one.upper) for one in nodes]
    known = [one for one in upper if one is not None]
    if upper[-1] is None and len(known) == len(upper) - 1:
        known.append(2 * known[-1] - known[-2])
    if any(one.step is not None for one in nodes) or len(known) < len(upper):
        raise _DifferError
    return ast.Slice(_bound(lower, counter), _bound(known, counter))


def _bound(values: Sequence[Any], counter: str) -> ast.expr:
    same = all(one == values[0] for one in values)
    return ast.Constant(values[0]) if same else _number(values, counter)


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    raise _DifferError

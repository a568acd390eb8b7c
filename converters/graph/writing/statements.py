"""Statements, and which of them stand within others, as the original's lines have them."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any

from converters.graph.expression import Hole
from converters.graph.ir import Frame, Ref, references
from converters.graph.writing.forms.options import is_choice
from converters.graph.writing.holes import filled, length, refs
from converters.graph.writing.original import names
from converters.graph.writing.original.comments import above, commented

# How long an expression may be that is put into another one of the same line.
_LONG = 88


@dataclass
class Statement:
    """`outs = value`.

    Attributes:
        outs: the tensors that it gives; several are unpacked.
        value: the expression; tensors in it are holes.
        frames: the lines of the original, from the module's forward inwards.
        single: whether the value is one tensor.
        nested: how the tensors are nested, where they are.
        places: of the tensors, among those that a function of the original returns; none: they are all.
        labels: where the tensors stand in what a module's call returns.
    """

    outs: tuple[int, ...]
    value: ast.expr
    frames: tuple[Frame, ...]
    single: bool = True
    nested: Any = None
    places: tuple[int, ...] = ()
    labels: tuple[str, ...] = ()


def inlined(
    statements: Sequence[Statement],
    results: Any,
    maybe: Set[int] = frozenset(),
    otherwise: Set[int] = frozenset(),
) -> tuple[list[Statement], dict[int, ast.expr]]:
    """Statements whose value is used once, on the line that gives it, put where it is used.

    Args:
        statements: in order.
        results: what is given in the end: `Ref`, or tuples and dicts of them.
        maybe: tensors that are None where an input is left out.
        otherwise: tensors that are needed only where one is.

    Returns:
        The statements that are left, and the expressions that went into others, by the tensor that they are.
    """
    statements = _without_aliases(statements, results)
    count: Counter[int] = Counter()
    consumer: dict[int, int] = {}
    for index, one in enumerate(statements):
        for number in refs(one.value):
            count[number] += 1
            consumer[number] = index
    casts = {one.outs[0] for one in statements if one.single and _is_nameless_cast(one)}
    for ref in references(results):
        alone = isinstance(results, Ref) or ref.id in casts
        count[ref.id] += 1 if alone else 2
        consumer[ref.id] = -1
    held: dict[int, ast.expr] = {}
    kept = []
    for one in statements:
        one.value = filled(one.value, held)
        if not any(count[out] for out in one.outs):
            continue
        if len(one.outs) == 1 and one.single and count[one.outs[0]] == 1:
            at = consumer[one.outs[0]]
            user = statements[at] if at >= 0 else None
            if _is_guarded(one, user, maybe) and (
                _together(one, user) or (one.outs[0] in otherwise and length(one.value) <= _LONG)
            ):
                if user is None and one.frames:  # what is returned
                    commented(one.value, above(one.frames[-1]))
                held[one.outs[0]] = one.value
                continue
        kept.append(one)
    return kept, held


def _is_guarded(one: Statement, user: Statement | None, maybe: Set[int]) -> bool:
    """Whether a value is there wherever it would be used."""
    if one.outs[0] not in maybe:
        return True
    return user is not None and (is_choice(user.value) or set(user.outs) <= maybe)


def _is_nameless_cast(one: Statement) -> bool:
    """Whether a statement gives a tensor in another dtype, and the original no name to that."""
    match one.value:
        case ast.Call(func=ast.Attribute(attr="astype")):
            return not targets(one.frames)
    return False


def _without_aliases(statements: Sequence[Statement], results: Any) -> list[Statement]:
    """Statements without those that only give a tensor another number."""
    same: dict[int, ast.expr] = {}
    kept = []
    given = {ref.id for ref in references(results)}
    for one in statements:
        one.value = filled(one.value, same)
        alias = isinstance(one.value, Hole) and isinstance(one.value.value, Ref) and one.single
        if alias and one.outs[0] not in given:
            same[one.outs[0]] = one.value
        else:
            kept.append(one)
    return kept


def unturned(statements: Sequence[Statement], results: Any) -> dict[int, set[int]]:
    """Take out turns that are always turned back (`y = f(x).swapaxes(1, 2)`, `y.swapaxes(1, 2)`).

    Returns:
        The tensors that lie otherwise now, with the axes that are swapped.
    """
    found: dict[int, set[int]] = {}
    given = {ref.id for ref in references(results)}
    for one in statements:
        turn = turned(one.value)
        if turn is None or not one.single or one.outs[0] in given:
            continue
        number, (inner, axes) = one.outs[0], turn
        back = _Back(number, axes)
        values = [back.visit(_copied(other.value)) for other in statements]
        if back.count and not any(number in refs(value) for value in values):
            for other, value in zip(statements, values, strict=True):
                other.value = filled(value, {-1 - number: Hole(Ref(number))})
            one.value = inner
            found[number] = axes
    return found


class _Back(ast.NodeTransformer):
    """Puts a marked hole where a tensor is turned back."""

    def __init__(self, number: int, axes: set[int]) -> None:
        self.number, self.axes, self.count = number, axes, 0

    def visit_Call(self, node: ast.Call) -> ast.expr:
        turn = turned(node)
        if turn is not None and turn[1] == self.axes:
            inner = turn[0]
            if isinstance(inner, Hole) and inner.value == Ref(self.number):
                self.count += 1
                return Hole(Ref(-1 - self.number))
        self.generic_visit(node)
        return node


def turned(node: ast.expr) -> tuple[ast.expr, set[int]] | None:
    """`x.swapaxes(1, 2)` → (x, {1, 2})."""
    match node:
        case ast.Call(
            func=ast.Attribute(value=inner, attr="swapaxes"),
            args=[ast.Constant(value=int(a)), ast.Constant(value=int(b))],
        ):
            return inner, {a, b}
    return None


def _copied(value: ast.expr) -> ast.expr:
    return filled(value, {})


def _together(one: Statement, user: Statement | None) -> bool:
    if user is not None and is_turn(one.value) and any(map(is_turn, ast.walk(user.value))):
        return False  # turns of a loop
    size = length(one.value)
    if user is None:
        return not targets(one.frames) and size <= 2 * _LONG
    if not targets(one.frames):
        return size <= _LONG
    # The line that names it: what it goes into may be of functions that are called on that line.
    line = next(frame for frame in reversed(one.frames) if names.targets(frame))
    return line in user.frames and size <= _LONG


def targets(frames: Sequence[Frame]) -> tuple[str, ...]:
    """The names that the innermost assignment among these lines gives."""
    for frame in reversed(frames):
        if found := names.targets(frame):
            return found
    return ()


def is_turn(value: ast.AST) -> bool:
    """Whether this is a call of a module in a list: `self.layers[0](x)`."""
    return (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Subscript)
        and isinstance(value.func.value, ast.Attribute)
        and isinstance(value.func.value.value, ast.Name)
        and value.func.value.value.id == "self"
    )

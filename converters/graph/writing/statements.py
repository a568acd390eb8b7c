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
        unplaced: whether a function of the original returns more, and where these stand is not known.
        inner: lines of the original's other statements whose values were put into this one.
    """

    outs: tuple[int, ...]
    value: ast.expr
    frames: tuple[Frame, ...]
    single: bool = True
    nested: Any = None
    places: tuple[int, ...] = ()
    labels: tuple[str, ...] = ()
    unplaced: bool = False
    inner: tuple[Frame, ...] = ()


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
    for index, statement in enumerate(statements):
        for number in refs(statement.value):
            count[number] += 1
            consumer[number] = index
    nameless = {
        statement.outs[0]
        for statement in statements
        if statement.single and (_is_nameless_cast(statement) or _is_on_return(statement))
    }
    for ref in references(results):
        alone = isinstance(results, Ref) or ref.id in nameless
        count[ref.id] += 1 if alone else 2
        consumer[ref.id] = -1
    held: dict[int, ast.expr] = {}
    kept = []
    ends = _turn_ends(statements)
    for index, statement in enumerate(statements):
        statement.value = filled(statement.value, held)
        if not any(count[out] for out in statement.outs):
            continue
        _keep_used(statement, count)
        if len(statement.outs) == 1 and statement.single and count[statement.outs[0]] == 1:
            at = consumer[statement.outs[0]]
            user = statements[at] if at >= 0 else None
            ends_turn = user is not None and index in ends
            if _is_guarded(statement, user, maybe) and (
                (not ends_turn and _together(statement, user))
                or (statement.outs[0] in otherwise and length(statement.value) <= _LONG)
            ):
                if user is None and statement.frames:  # what is returned
                    lines = dict.fromkeys((*statement.inner, statement.frames[-1]))
                    commented(statement.value, [each for line in lines for each in above(line)])
                elif user is not None:
                    user.inner = _lines_within(statement, user)
                held[statement.outs[0]] = statement.value
                continue
        kept.append(statement)
    return kept, held


# What gives an extreme of equal elements the gradient of torch → the same without its index.
_ALONE = {"max_with_index": "largest", "min_with_index": "smallest"}


def _keep_used(statement: Statement, count: Counter[int]) -> None:
    """Leave out results of an operator that nothing reads: `largest(x, axis=1)` instead of the index too."""
    used = [place for place, out in enumerate(statement.outs) if count[out]]
    if statement.single or statement.nested is not None or statement.places or len(used) > 1:
        return
    (place,) = used
    match statement.value:
        case ast.Tuple(elts=parts) if len(parts) == len(statement.outs):
            alone = parts[place]
        case ast.Call(func=ast.Name(id="max_with_index" | "min_with_index" as name), args=[x]):
            function: ast.expr = ast.Name(_ALONE[name], ast.Load())
            inputs = [x]
            if place:
                function, inputs = ast.Attribute(x, f"arg{name[:3]}", ast.Load()), []
            alone = ast.Call(function, inputs, statement.value.keywords)
        case _:
            return
    statement.outs, statement.value, statement.single = (statement.outs[place],), alone, True


def _lines_within(statement: Statement, user: Statement) -> tuple[Frame, ...]:
    """The lines of a statement and of those within it, where they are lines of its user's function."""
    last = user.frames[-1] if user.frames else None
    lines = (*user.inner, *statement.inner, *statement.frames[-1:])
    own = [
        line
        for line in dict.fromkeys(lines)
        if last is not None and (line.file, line.function) == (last.file, last.function)
    ]
    return tuple(sorted(own, key=lambda line: line.line))


def _is_guarded(statement: Statement, user: Statement | None, maybe: Set[int]) -> bool:
    """Whether a value is there wherever it would be used."""
    if statement.outs[0] not in maybe:
        return True
    return user is not None and (is_choice(user.value) or set(user.outs) <= maybe)


def _is_on_return(statement: Statement) -> bool:
    """Whether a tensor is computed where it is returned, among others: `return x.cos(), x.sin()`."""
    source = names.statement(statement.frames[-1]) if statement.frames else None
    if (
        not isinstance(source, ast.Return)
        or targets(statement.frames)
        or above(statement.frames[-1])
    ):
        return False
    return length(statement.value) <= _LONG


def _turn_ends(statements: Sequence[Statement]) -> set[int]:
    """The statements that end a turn, where a line of a loop's body was recorded turn by turn.

    `out = out + weight[:, i] * expert(x)` gives the same kinds of statements again and again. The next turn
    goes on from what a turn gives, on the same line, and yet it is another statement of the original.
    """
    lines: dict[Frame, list[int]] = {}
    for index, statement in enumerate(statements):
        line = _named_on(statement)
        if line is not None and names.in_loop(line):
            lines.setdefault(line, []).append(index)
    ends: set[int] = set()
    for every in lines.values():
        places = [at for at in every if not _stops(statements[at].value)]
        kinds = [_kind(statements[at].value) for at in places]
        size = len(kinds)
        for step in range(1, size // 2 + 1):
            # The first turn may do less: what it adds to is nothing yet.
            rest = size % step
            if all(kinds[at] == kinds[at + step] for at in range(rest, size - step)):
                ends |= {places[at - 1] for at in range(rest or step, size + 1, step)}
                break
    return ends


def _stops(value: ast.expr) -> bool:
    """Whether a statement only passes no gradient on, which is no statement of the original."""
    match value:
        case ast.Call(func=ast.Attribute(attr="stop_gradient"), args=[Hole()]):
            return True
    return False


def _kind(node: Any) -> str:
    """Key of an expression's operation, independent of its operands."""
    if isinstance(node, Hole):
        return "?"
    if isinstance(node, ast.Constant | ast.Slice):
        return "#"
    if isinstance(node, list):
        return f"[{','.join(map(_kind, node))}]"
    if isinstance(node, ast.AST):
        return f"{type(node).__name__}({','.join(_kind(getattr(node, f, None)) for f in node._fields)})"
    return repr(node)


def _is_nameless_cast(statement: Statement) -> bool:
    """Whether a statement gives a tensor in another dtype, and the original no name to that."""
    match statement.value:
        case ast.Call(func=ast.Attribute(attr="astype")):
            return not targets(statement.frames)
    return False


def _without_aliases(statements: Sequence[Statement], results: Any) -> list[Statement]:
    """Statements without those that only give a tensor another number."""
    same: dict[int, ast.expr] = {}
    kept = []
    result_ids = {ref.id for ref in references(results)}
    for statement in statements:
        statement.value = filled(statement.value, same)
        alias = (
            isinstance(statement.value, Hole)
            and isinstance(statement.value.value, Ref)
            and statement.single
        )
        if alias and statement.outs[0] not in result_ids:
            same[statement.outs[0]] = statement.value
        else:
            kept.append(statement)
    return kept


def unturned(statements: Sequence[Statement], results: Any) -> dict[int, set[int]]:
    """Take out turns that are always turned back (`y = f(x).swapaxes(1, 2)`, `y.swapaxes(1, 2)`).

    Returns:
        The tensors that lie otherwise now, with the axes that are swapped.
    """
    swapped: dict[int, set[int]] = {}
    result_ids = {ref.id for ref in references(results)}
    for statement in statements:
        turn = turned(statement.value)
        if turn is None or not statement.single or statement.outs[0] in result_ids:
            continue
        number, (inner, axes) = statement.outs[0], turn
        back = _Back(number, axes)
        values = [back.visit(_copied(other.value)) for other in statements]
        if back.count and not any(number in refs(value) for value in values):
            for other, value in zip(statements, values, strict=True):
                other.value = filled(value, {-1 - number: Hole(Ref(number))})
            statement.value = inner
            swapped[number] = axes
    return swapped


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


def _together(statement: Statement, user: Statement | None) -> bool:
    if user is not None and is_turn(statement.value) and any(map(is_turn, ast.walk(user.value))):
        return False  # turns of a loop
    size = length(statement.value)
    if user is None:
        return not targets(statement.frames) and size <= 2 * _LONG
    if not targets(statement.frames):
        return size <= _LONG
    # The line that names it: what it goes into may be of functions that are called on that line.
    line = next(frame for frame in reversed(statement.frames) if names.targets(frame))
    return line in user.frames and size <= _LONG


def targets(frames: Sequence[Frame]) -> tuple[str, ...]:
    """The names that the innermost assignment among these lines gives."""
    for frame in reversed(frames):
        if names_here := names.targets(frame):
            return names_here
    return ()


def has_other_turn(value: ast.AST, others: Sequence[ast.AST]) -> bool:
    """Whether a call of a method of a module in a list is made of another module of that list too.

    `self.flows[0].inverse(x)` and `self.flows[1].inverse(x)` are turns of a loop.
    """
    own = _turn_by_method(value)
    if own is None:
        return False
    turns_found = (_turn_by_method(node) for other in others for node in ast.walk(other))
    return any(
        turn_found is not None and turn_found[::2] == own[::2] and turn_found[1] != own[1]
        for turn_found in turns_found
    )


def _turn_by_method(value: ast.AST) -> tuple[str, int, str] | None:
    """`self.flows[2].inverse(x)` → ("flows", 2, "inverse")."""
    match value:
        case ast.Call(
            func=ast.Attribute(
                value=ast.Subscript(
                    value=ast.Attribute(value=ast.Name(id="self"), attr=name),
                    slice=ast.Constant(value=int(index)),
                ),
                attr=method,
            )
        ):
            return name, index, method
    return None


def place_on_line(statement: Statement, statements: Sequence[Statement]) -> int:
    """Index of a tensor's name among the names of its line: `cos, sin = x.cos(), x.sin()` are two
    statements.

    Only statements that nothing else on the line reads count. It is 0 if they are not as many as
    the names.
    """
    target_names, line = targets(statement.frames), _named_on(statement)
    if len(target_names) < 2 or "_" in target_names:
        return 0
    alike = [other for other in statements if _named_on(other) == line]
    read = {number for other in alike for number in refs(other.value)}
    last = [other for other in alike if other.single and not set(other.outs) & read]
    if len(last) != len(target_names):
        return 0
    return next((place for place, other in enumerate(last) if other is statement), 0)


def _named_on(statement: Statement) -> Frame | None:
    """The line that gives a statement's tensors their names."""
    return next((frame for frame in reversed(statement.frames) if names.targets(frame)), None)


def is_turn(value: ast.AST) -> bool:
    """Whether this is a call of a module in a list: `self.layers[0](x)`."""
    return (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Subscript)
        and isinstance(value.func.value, ast.Attribute)
        and isinstance(value.func.value.value, ast.Name)
        and value.func.value.value.id == "self"
    )

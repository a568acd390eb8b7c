"""Loops in which a constructor makes the modules of a list: what their variables stand for in each turn."""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from converters.graph.expression import INDEX, code
from converters.graph.writing.original import constructors


class Index(ast.expr):
    """The number of a module in its list.

    Attributes:
        number: the number.
        holder: path of the list.
    """

    _fields = ()

    def __init__(self, number: int, holder: str) -> None:
        super().__init__()
        self.number, self.holder = number, holder

    def __deepcopy__(self, memo: object) -> Index:
        return self


@dataclass(frozen=True)
class Entries:
    """Entries of a sequence of numbers that a constructor puts together.

    Attributes:
        text: expression of the entry, or of the sequence of them.
        values: the numbers.
        whole: whether `text` is a sequence: its length may be another one.
    """

    text: str
    values: tuple[int | float, ...]
    whole: bool = False


def entry_text(parts: Sequence[Entries], shift: int) -> str:
    """The entry at a member's place (`INDEX`) in a list, `shift` places further on: `widths[i]`."""
    left = list(parts)
    while left and not left[0].whole and shift > 0:
        shift -= 1
        left.pop(0)
    place = INDEX if not shift else f"{INDEX} + {shift}"
    if len(left) == 1 and left[0].whole:
        return f"{left[0].text}[{place}]"
    listed = ", ".join(f"*{part.text}" if part.whole else part.text for part in left)
    return f"({listed}{',' * (len(left) == 1)})[{place}]"


def text_at(text: str, number: int) -> str:
    """An expression of a member's place, at one place: `widths[2]`."""
    return ast.unparse(_AtPlace(number).visit(ast.parse(text, mode="eval").body))


class _AtPlace(ast.NodeTransformer):
    def __init__(self, number: int) -> None:
        self.number = number

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(self.number) if node.id == INDEX else node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        match node:
            case ast.BinOp(
                ast.Constant(value=int(left)), ast.Add(), ast.Constant(value=int(right))
            ):
                return ast.Constant(left + right)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        self.generic_visit(node)
        match node:
            case ast.Subscript(value=ast.Tuple(elts=[*parts]), slice=ast.Constant(value=int(at))):
                before = [isinstance(part, ast.Starred) for part in parts]
                first = before.index(True) if any(before) else len(parts)
                if at < first:
                    return parts[at]
                if first == len(parts) - 1:
                    inner = parts[first]
                    assert isinstance(inner, ast.Starred)
                    return code(f"{{x}}[{at - first}]", x=inner.value)
        return node


def variables(trees: Sequence[ast.AST], call: ast.Call, index: Index) -> dict[str, ast.expr]:
    """The variables of the innermost loop around a call, as expressions of the turn's number.

    A value that the loop's body gives a name is one of them: `rate = 0.1 * i`.

    Args:
        trees: where the loop may stand.
        call: the call in the loop.
        index: the number of the turn.
    """
    innermost: ast.AST | None = None
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.For | ast.ListComp | ast.GeneratorExp) and _is_within(
                node, call
            ):
                innermost = node
        if innermost is not None:
            break
    match innermost:
        case ast.For(target=target, iter=iterable, body=body):
            known = _bound(target, iterable, index)
            for statement in body:
                match statement:
                    case ast.Assign(targets=[ast.Name(id=name)], value=value):
                        known[name] = turned(value, known)
            return known
        case (
            ast.ListComp(generators=[ast.comprehension(target=target, iter=iterable, ifs=[])])
            | ast.GeneratorExp(generators=[ast.comprehension(target=target, iter=iterable, ifs=[])])
        ):
            return _bound(target, iterable, index)
    return {}


def _is_within(loop: ast.AST, call: ast.Call) -> bool:
    parts = loop.body if isinstance(loop, ast.For) else [loop.elt]  # type: ignore[attr-defined]
    return any(node is call for part in parts for node in ast.walk(part))


def _bound(target: ast.expr, iterable: ast.expr, index: Index) -> dict[str, ast.expr]:
    """The names of a loop's target, each with its value in a turn."""
    match target, iterable:
        case ast.Name(id=name), _:
            entry = entry_of(iterable, index)
            return {name: _entry(iterable, index) if entry is None else entry}
        case ast.Tuple(elts=[number, inner]), ast.Call(func=ast.Name(id="enumerate"), args=[over]):
            first = {number.id: index} if isinstance(number, ast.Name) else {}
            return {**first, **_bound(inner, over, index)}
        case ast.Tuple(elts=[_, _]), ast.Call(func=function, args=[over]) if (
            constructors.last(function) == "pairwise"
        ):
            rest = ast.Subscript(over, ast.Slice(ast.Constant(1)), ast.Load())
            return _bound(target, code("zip({x}, {y})", x=over, y=rest), index)
        case ast.Tuple(elts=parts), ast.Call(func=ast.Name(id="zip"), args=over) if len(
            parts
        ) == len(over):
            pairs = zip(parts, over, strict=True)
            return {
                name: value
                for part, each in pairs
                for name, value in _bound(part, each, index).items()
            }
    return {}


def entry_of(iterable: ast.expr, index: Index) -> ast.expr | None:
    """The expression of an entry of what a loop goes over; None if its source does not show it."""
    match iterable:
        case ast.Call(func=ast.Name(id="range"), args=[_], keywords=[]):
            return index
        case ast.Call(func=ast.Name(id="range"), args=[start, _], keywords=[]):
            return ast.BinOp(start, ast.Add(), index)
        case ast.Call(func=ast.Name(id="list" | "tuple"), args=[inner], keywords=[]):
            return entry_of(inner, index)
        case ast.Call(func=ast.Attribute(value=inner, attr="tolist"), args=[], keywords=[]):
            return entry_of(inner, index)
        case ast.Call(func=function, args=[start, end, count]) if (
            constructors.last(function) == "linspace"
        ):
            return _linspace(start, end, count, index)
        case ast.Call(func=function, args=[start, end], keywords=keywords) if (
            constructors.last(function) == "linspace"
        ):
            counts = [each.value for each in keywords if each.arg in ("steps", "num")]
            return _linspace(start, end, counts[0], index) if counts else None
        case ast.ListComp(
            elt=element, generators=[ast.comprehension(target=target, iter=over, ifs=[])]
        ):
            return turned(element, _bound(target, over, index))
    return None


def _linspace(start: ast.expr, end: ast.expr, count: ast.expr, index: Index) -> ast.expr:
    """`start + (end - start) * i / max(count - 1, 1)`."""
    steps = code("max({count} - 1, 1)", count=count)
    zero = isinstance(start, ast.Constant) and start.value == 0
    way = end if zero else ast.BinOp(end, ast.Sub(), start)
    share = ast.BinOp(ast.BinOp(way, ast.Mult(), index), ast.Div(), steps)
    return share if zero else ast.BinOp(start, ast.Add(), share)


def _entry(iterable: ast.expr, index: Index) -> ast.expr:
    return ast.Subscript(iterable, index, ast.Load())


def turned(tree: ast.expr, known: Mapping[str, ast.expr]) -> ast.Call:
    """A copy of an expression with the values of variables in place of their names."""
    changed: ast.Call = _Turned(known).visit(copy.deepcopy(tree))
    return changed


class _Turned(ast.NodeTransformer):
    def __init__(self, known: Mapping[str, ast.expr]) -> None:
        self.known = known

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.known.get(node.id, node) if isinstance(node.ctx, ast.Load) else node

"""Repeated calls of the modules of a list as a loop over the list."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from converters.graph.draft import fill
from converters.graph.expression import as_code, call


def rolled(body: Sequence[ast.stmt], length: dict[str, int]) -> list[ast.stmt]:
    """Statements with runs that differ in the index of a module only made a loop.

    Args:
        body: the statements.
        length: attribute → how many modules its list has.
    """
    made = list(body)
    for attribute, count in length.items():
        if count:
            made = _rolled(made, attribute, count)
    return made


def _rolled(body: list[ast.stmt], attribute: str, count: int) -> list[ast.stmt]:
    first = {
        index: place
        for place in reversed(range(len(body)))
        for index in _indices(body[place], attribute)
    }
    if sorted(first) != list(range(count)):
        return body
    step = first[1] - first[0] if count > 1 else 1
    starts = [first[0] + index * step for index in range(count)]
    if step < 1 or any(first[index] < starts[index] for index in range(count)):
        return body
    if any(not starts[i] <= first[i] < starts[i] + step for i in range(count)):
        return body
    end = starts[-1] + step
    # The statement that names the module need not be the first of its turn.
    for shift in range(step):
        low, high = starts[0] - shift, end - shift
        if low < 0 or high > len(body):
            continue
        turns = [body[low + i * step : low + (i + 1) * step] for i in range(count)]
        lists = _lists(turns, count)
        forms = {_form(turn, lists, index) for index, turn in enumerate(turns)}
        if len(forms) == 1:
            return [*body[:low], _loop(turns[0], lists), *body[high:]]
    return body


def _indices(tree: ast.AST, attribute: str) -> Iterator[int]:
    for node in ast.walk(tree):
        if (found := _member(node)) and found[0] == attribute:
            yield found[1]


def _member(node: ast.AST) -> tuple[str, int] | None:
    """`self.layers[3]` → ("layers", 3)."""
    match node:
        case ast.Subscript(
            value=ast.Attribute(value=ast.Name(id="self"), attr=name),
            slice=ast.Constant(value=int(index)),
        ):
            return name, index
    return None


def _lists(turns: Sequence[Sequence[ast.stmt]], count: int) -> list[str]:
    """The lists whose module of each turn has the turn's number."""
    found: dict[str, set[tuple[int, int]]] = {}
    for number, turn in enumerate(turns):
        for statement in turn:
            for node in ast.walk(statement):
                if member := _member(node):
                    found.setdefault(member[0], set()).add((number, member[1]))
    return [name for name, seen in found.items() if seen == {(i, i) for i in range(count)}]


def _variable(name: str) -> str:
    if name.endswith("ies"):
        return f"{name[:-3]}y"
    if name.endswith("ses") or name.endswith("xes"):
        return name[:-2]
    return name[:-1] if name.endswith("s") and len(name) > 2 else f"{name}_i"


class _Members(ast.NodeTransformer):
    def __init__(self, lists: Sequence[str], index: int) -> None:
        self.lists, self.index = lists, index

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        member = _member(node)
        if member and member[0] in self.lists and member[1] == self.index:
            return ast.Name(_variable(member[0]), ast.Load())
        return self.generic_visit(node)


def _turn(turn: Sequence[ast.stmt], lists: Sequence[str], index: int) -> list[ast.stmt]:
    return [_Members(lists, index).visit(fill(one, lambda hole: hole)) for one in turn]


def _form(turn: Sequence[ast.stmt], lists: Sequence[str], index: int) -> str:
    return "\n".join(ast.dump(one) for one in _turn(turn, lists, index))


def _loop(turn: Sequence[ast.stmt], lists: Sequence[str]) -> ast.stmt:
    sources = [
        ast.Attribute(ast.Name("self", ast.Load()), name, ast.Load()) for name in lists
    ]
    names: list[ast.expr] = [ast.Name(_variable(name), ast.Store()) for name in lists]
    over = sources[0] if len(lists) == 1 else call("zip", *sources, strict=True)
    target = names[0] if len(lists) == 1 else ast.Tuple(names, ast.Store())
    return ast.For(target, as_code(over), _turn(turn, lists, 0), [])

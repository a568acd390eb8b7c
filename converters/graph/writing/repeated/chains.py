"""Layers of a list that a method calls one after the other, each with what the one before gave."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from converters.graph.writing.forms.form import names_read, names_stored
from converters.graph.writing.forms.lists import counted
from converters.graph.writing.forms.loops import RenamedValue, indices, member_of, names_in
from converters.graph.writing.holes import fill
from converters.graph.writing.model import Class, Method

# What stands for the layer in the statements of a turn; no identifier, so that no value has the name.
LAYER = "@layer"


@dataclass(frozen=True)
class LayerChain:
    """Calls of all layers of a list.

    Attributes:
        start: place of the first statement in the method's body.
        end: place after the last.
        before: statements that come first.
        turns: statements of each layer, in which the layer is called `LAYER`; one turn stands for all if
            there is a loop over equal layers.
        length: the number of layers, if one turn stands for all.
    """

    start: int
    end: int
    before: tuple[ast.stmt, ...]
    turns: tuple[tuple[ast.stmt, ...], ...]
    length: ast.expr | None


class NotAChainError(Exception):
    """Error for layers that are called otherwise; the text is the reason."""


def elements(value: ast.expr) -> tuple[list[ast.expr], ast.expr | None] | None:
    """The layers of a list in a constructor, and their number if one stands for all; else None."""
    if isinstance(value, ast.List):
        return value.elts, None
    return counted(value)


def chain_of(cls: Class, method: Method, attribute: str) -> LayerChain | None:
    """The calls of a list's layers in a method; None if the method does not mention the list.

    Raises:
        NotAChainError: the layers are used otherwise.
    """
    mentions = [_mentions([statement], attribute) for statement in method.body]
    at = [place for place, count in enumerate(mentions) if count]
    if _mentions([method.result], attribute):
        raise NotAChainError("the result reads its layers")
    if not at:
        return None
    parts, length = next((p, n) for name, p, n in layer_lists(cls) if name == attribute)
    loop = method.body[at[0]]
    if isinstance(loop, ast.For):
        if len(at) > 1:
            raise NotAChainError("its layers are used several times")
        return _looped(loop, at[0], attribute, parts, length)
    return _one_by_one(method, at, attribute, parts, length)


def _looped(
    loop: ast.For, at: int, attribute: str, layers: Sequence[ast.expr], length: ast.expr | None
) -> LayerChain:
    match loop:
        case ast.For(
            target=ast.Name(id=name),
            iter=ast.Attribute(value=ast.Name(id="self"), attr=attr),
            body=body,
            orelse=[],
        ) if attr == attribute and not _mentions(body, attribute):
            turn = tuple(_renamed(statement, name, LAYER) for statement in body)
        case _:
            raise NotAChainError("the loop over its layers is not plain")
    _require_plain(turn)
    turns = (turn,) if length is not None else tuple(map(_copies, [turn] * len(layers)))
    _require_chained(turn, names_stored(turn))
    return LayerChain(at, at + 1, (), turns, length)


def _one_by_one(
    method: Method,
    at: Sequence[int],
    attribute: str,
    layers: Sequence[ast.expr],
    length: ast.expr | None,
) -> LayerChain:
    """Calls such as `x = self.layers[0](x)`, `x = self.layers[1](x)`."""
    count = len(layers)
    if length is not None:
        if not isinstance(length, ast.Constant):
            raise NotAChainError("the number of its layers is not known")
        count = int(ast.literal_eval(length))
    if len(at) != count:
        raise NotAChainError("its layers are not called one after the other")
    start, end = at[0], at[-1] + 1
    before: list[ast.stmt] = []
    turns: list[list[ast.stmt]] = []
    stored: set[str] = set()  # by the turns
    read: set[str] = set()
    for place in range(start, end):
        statement = method.body[place]
        own = set(names_stored([statement]))
        if place in at:
            called = {*indices(statement, attribute)}
            if called != {len(turns)} or _mentions([statement], attribute) != 1:
                raise NotAChainError("its layers are not called one after the other")
            turns.append([])
        elif not (names_read(statement) & stored or own & (stored | read)):
            before.append(statement)
            continue
        turns[-1].append(_Called(attribute).visit(fill(statement, lambda hole: hole)))
        stored |= own
        read |= names_read(statement)
    for turn in turns:
        _require_plain(turn)
    if count > 1:
        _require_chained([statement for turn in turns for statement in turn], [*stored])
        first = _first_as_others(turns)
        before += first
    return LayerChain(start, end, tuple(before), tuple(map(tuple, turns)), None)


def _first_as_others(turns: list[list[ast.stmt]]) -> list[ast.stmt]:
    """Let the first turn read the name that the others read (`hidden_states = inputs_embeds` before it)."""
    names = [[node.id for node in names_in(turn)] for turn in turns]
    stored = {name for turn in turns[:-1] for name in names_stored(turn)}
    for other in names[1:]:
        pairs = {(a, b) for a, b in zip(names[0], other, strict=False) if a != b}
        if len(other) != len(names[0]) or len(pairs) > 1:
            continue
        if not pairs:
            return []
        ((old, new),) = pairs
        if new in stored and new not in names_read(ast.Module(turns[0], [])):
            turns[0][:] = [_renamed(statement, old, new) for statement in turns[0]]
            return [ast.Assign([ast.Name(new, ast.Store())], ast.Name(old, ast.Load()))]
        return []
    # The first differs in more: its own name of the value is still the value's.
    return []


def needed(turn: Sequence[ast.stmt]) -> set[str]:
    """The names that statements read before they give them a value."""
    stored: set[str] = set()
    before: set[str] = set()
    for statement in turn:
        before |= names_read(statement) - stored
        own = set(names_stored([statement]))
        if isinstance(statement, ast.If | ast.AugAssign):
            before |= own - stored
        stored |= own
    return before


def _require_plain(turn: Sequence[ast.stmt]) -> None:
    """Refuse statements that do more than give names to values."""
    for statement in turn:
        for node in ast.walk(statement):
            if isinstance(node, ast.stmt) and not isinstance(
                node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.If
            ):
                raise NotAChainError("the outputs of its layers are collected")
            if isinstance(node, ast.Assign) and not all(
                isinstance(target, ast.Name | ast.Tuple) for target in node.targets
            ):
                raise NotAChainError("the outputs of its layers are collected")


def _require_chained(turn: Sequence[ast.stmt], stored: Sequence[str]) -> None:
    """Refuse layers that are not given what the one before gave (experts, branches)."""
    calls = [
        node
        for statement in turn
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and node.id == LAYER
    ]
    called = [
        node
        for statement in turn
        for node in ast.walk(statement)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == LAYER
    ]
    if len(calls) != len(called):
        raise NotAChainError("its layers are not only called")
    for call in called:
        arguments = {name for argument in call.args for name in names_read(argument)}
        arguments |= {name for keyword in call.keywords for name in names_read(keyword.value)}
        if arguments & {*stored}:
            return
    raise NotAChainError("its layers are not given what the one before gave")


def layer_lists(cls: Class) -> Iterator[tuple[str, list[ast.expr], ast.expr | None]]:
    """Attribute, layers and length of each list of layers in a class; see `elements`."""
    for statement in cls.setup:
        if isinstance(statement, ast.Assign) and (name := _assigned(statement)):
            list_parts = elements(statement.value)
            if list_parts is not None:
                yield name, *list_parts


def _assigned(statement: ast.stmt) -> str:
    match statement:
        case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)]):
            return name
    return ""


def _mentions(trees: Sequence[ast.AST], attribute: str) -> int:
    return sum(
        isinstance(node, ast.Attribute)
        and node.attr == attribute
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
        for tree in trees
        for node in ast.walk(tree)
    )


class _Called(ast.NodeTransformer):
    """`self.layers[3]` becomes the name of the turn's layer."""

    def __init__(self, attribute: str) -> None:
        self.attribute = attribute

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        member = member_of(node)
        if member is not None and member[0] == self.attribute:
            return ast.Name(LAYER, ast.Load())
        return self.generic_visit(node)


def _renamed(statement: ast.stmt, old: str, new: str) -> ast.stmt:
    renamed: ast.stmt = RenamedValue(old, new).visit(fill(statement, lambda hole: hole))
    return renamed


def _copies(turn: Sequence[ast.stmt]) -> tuple[ast.stmt, ...]:
    return tuple(fill(statement, lambda hole: hole) for statement in turn)

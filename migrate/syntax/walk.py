"""Fast walk over a concrete syntax tree, and fast type tests of its nodes.

libcst's own `children` goes through the code that replaces nodes, which copies the node each time. That took
half of the time of a rewrite.

libcst's nodes are abstract classes, which another class may be registered with as a subclass. So `isinstance`
runs Python code that caches its answers in weak sets. Nothing is ever registered with them, so the plain
answer is the same, in 160 ns instead of 520 (Python 3.11).
"""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Callable, Iterator
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar

import libcst as cst

Node = TypeVar("Node", bound=cst.CSTNode)
Values = Callable[[cst.CSTNode], tuple[Any, ...]]

WHITE = (
    cst.BaseParenthesizableWhitespace,
    cst.Comment,
    cst.EmptyLine,
    cst.Newline,
    cst.TrailingWhitespace,
)
# Node types without content of interest. Half of the nodes of a script are spaces.
BLANK = frozenset({cst.Newline, cst.SimpleWhitespace})
# Fields that hold only such nodes, in any node.
WHITE_FIELDS = frozenset(
    {"footer", "header", "leading_lines", "leading_whitespace", "trailing_whitespace"}
)
WHITE_PREFIXES = ("whitespace", "lines_after_")
# Marks between the parts of a node, and the fields that hold only these, in any node.
MARKS = (
    cst.AssignEqual,
    cst.Comma,
    cst.Dot,
    cst.LeftCurlyBrace,
    cst.LeftParen,
    cst.LeftSquareBracket,
    cst.RightCurlyBrace,
    cst.RightParen,
    cst.RightSquareBracket,
    cst.Semicolon,
)
MARK_FIELDS = frozenset(
    {"comma", "dot", "equal", "lbrace", "lbracket", "lpar", "rbrace", "rbracket", "rpar"}
    | {"semicolon"}
)
# Readers of a node's children: all of them, those with code, those with code but marks.
ALL, CODE, PARTS = range(3)


class _Plain(ABCMeta):
    """Metaclass for libcst nodes, with the `isinstance` of ordinary classes."""

    __instancecheck__ = type.__instancecheck__


def with_subclasses(kind: type) -> Iterator[type]:
    """Yield `kind` and all classes below it; a class with several bases may come more than once."""
    yield kind
    subclasses: list[type] = type.__subclasses__(kind)
    for below in subclasses:
        yield from with_subclasses(below)


def ask_plainly() -> None:
    """Make `isinstance` inspect only the classes of a node, for all existing node types."""
    for kind in {*with_subclasses(cst.CSTNode)}:
        if type(kind) is ABCMeta:
            type.__setattr__(kind, "__class__", _Plain)


ask_plainly()


class _Fields(cst.CSTVisitor):
    """Table of the fields of each node type that hold its children, in the order of libcst's visits."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        return False

    def on_visit_attribute(self, node: cst.CSTNode, attribute: str) -> None:
        self.names.append(attribute)


_readers: dict[type[cst.CSTNode], tuple[Values, Values, Values]] = {}


def _learn(node: cst.CSTNode) -> tuple[Values, Values, Values]:
    """Return readers of the fields with children, last first: of all, of those with code, of the parts."""
    fields = _Fields()
    node._visit_and_replace_children(fields)
    names = fields.names
    if hasattr(node, "format_spec") and "format_spec" not in names:
        names.append("format_spec")  # visited, last, only if present
    of_code = [
        name for name in names if name not in WHITE_FIELDS and not name.startswith(WHITE_PREFIXES)
    ]
    parts = [name for name in of_code if name not in MARK_FIELDS]
    readers = _reader(names), _reader(of_code), _reader(parts)
    _readers[type(node)] = readers
    return readers


def _reader(names: list[str]) -> Values:
    if not names:
        return lambda node: ()
    if len(names) == 1:
        only = attrgetter(names[0])
        return lambda node: (only(node),)
    return attrgetter(*reversed(names))


def _walk(root: cst.CSTNode, which: int) -> Iterator[cst.CSTNode]:
    stack = [root]
    pop, push, extend = stack.pop, stack.append, stack.extend
    none, absent, blank = type(None), cst.MaybeSentinel, BLANK
    while stack:
        node = pop()
        yield node
        readers = _readers.get(type(node)) or _learn(node)
        for value in readers[which](node):
            kind = type(value)
            if kind is tuple or kind is list:
                extend(reversed(value))
            elif kind is not none and kind is not absent and kind not in blank:
                push(value)


def nodes(root: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield `root` and every node below it except spaces and line ends, in the order of the source."""
    return _walk(root, ALL)


def code_nodes(root: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield `root` and every node below it except white space and comments, in the order of the source."""
    return _walk(root, CODE)


def nodes_of(root: cst.CSTNode, kind: type[Node]) -> Iterator[Node]:
    """Yield the nodes of type `kind` at and below `root`, in the order of the source."""
    is_kind, which = _of_kind(kind)
    if which != PARTS:
        yield from (node for node in _walk(root, which) if isinstance(node, kind))
        return
    # As `_walk`, which would resume once more for each node.
    stack = [root]
    pop, push, extend = stack.pop, stack.append, stack.extend
    none, absent = type(None), cst.MaybeSentinel
    while stack:
        node = pop()
        type_ = type(node)
        is_match = is_kind.get(type_)
        if is_match is None:
            is_match = is_kind[type_] = isinstance(node, kind)
        if is_match:
            yield node  # type: ignore[misc]
        for value in (_readers.get(type_) or _learn(node))[PARTS](node):
            kind_of_value = type(value)
            if kind_of_value is tuple or kind_of_value is list:
                extend(reversed(value))
            elif kind_of_value is not none and kind_of_value is not absent:
                push(value)


@cache
def _of_kind(kind: Any) -> tuple[dict[type[cst.CSTNode], bool], int]:
    """Return for each type seen whether it is one of `kind`, and the reader that comes to all of these."""
    single = getattr(kind, "__args__", (kind,))
    for which, others in ((ALL, WHITE), (CODE, MARKS)):
        if any(issubclass(a, b) or issubclass(b, a) for a in single for b in others):
            return {}, which
    return {}, PARTS


def kinds_of(base: type) -> frozenset[type]:
    """Return the types of node derived from `base`, of which none is derived from another one.

    `type(node) in kinds` costs a tenth of `isinstance(node, base)`: the classes of libcst are abstract, and
    Python searches a table of weak references for each answer that is no.
    """
    below: list[type] = base.__subclasses__()
    return frozenset(below).union(*map(kinds_of, below))


def children(node: cst.CSTNode) -> list[cst.CSTNode]:
    """Return the nodes directly below `node`, without white space, in the order of the source."""
    return _below(node, CODE)


def order(root: cst.CSTNode) -> tuple[list[cst.CSTNode], dict[int, cst.CSTNode]]:
    """Return the nodes that `nodes` yields, and the parent of each by its id."""
    nodes: list[cst.CSTNode] = []
    above: dict[int, cst.CSTNode] = {}
    stack = [root]
    pop, push, note = stack.pop, stack.append, nodes.append
    none, absent, blank = type(None), cst.MaybeSentinel, BLANK
    while stack:
        node = pop()
        note(node)
        readers = _readers.get(type(node)) or _learn(node)
        for value in readers[ALL](node):
            kind = type(value)
            if kind is tuple or kind is list:
                for child in reversed(value):
                    above[id(child)] = node
                    push(child)
            elif kind is not none and kind is not absent and kind not in blank:
                above[id(value)] = node
                push(value)
    return nodes, above


def _below(node: cst.CSTNode, which: int) -> list[cst.CSTNode]:
    nodes: list[cst.CSTNode] = []
    readers = _readers.get(type(node)) or _learn(node)
    for value in reversed(readers[which](node)):
        kind = type(value)
        if kind is tuple or kind is list:
            nodes.extend(value)
        elif value is not None and kind is not cst.MaybeSentinel:
            nodes.append(value)
    return nodes

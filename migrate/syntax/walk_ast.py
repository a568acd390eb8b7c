"""Fast walk over the trees of `ast`.

`ast.walk` asks every node for the values of all its fields, one generator inside another, and a third of the
nodes that it gives are the contexts `Load` and `Store`. Here each node type is asked once which of its fields
may hold nodes, and the contexts are left out.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

# Fields that hold text, numbers or the context, in every node type that has them.
_LEFT_OUT = frozenset(
    {"arg", "asname", "attr", "conversion", "ctx", "id", "is_async", "kind", "kwd_attrs", "level"}
    | {"module", "rest", "simple", "tag", "type_comment"}
)
Values = Callable[[ast.AST], tuple[Any, ...]]


def _nothing(node: ast.AST) -> tuple[Any, ...]:
    return ()


_readers: dict[type[ast.AST], Values] = dict.fromkeys(
    (ast.Constant, ast.Global, ast.Nonlocal, ast.alias, ast.MatchSingleton), _nothing
)


def _learn(kind: type[ast.AST]) -> Values:
    """Return a reader of the fields of `kind` that may hold nodes."""
    names = [name for name in kind._fields if name not in _LEFT_OUT]
    if len(names) > 1:
        _readers[kind] = attrgetter(*names)
    elif names:
        only = attrgetter(names[0])
        _readers[kind] = lambda node: (only(node),)
    else:
        _readers[kind] = _nothing
    return _readers[kind]


def children(node: ast.AST) -> list[ast.AST]:
    """Return the nodes directly below `node` but the contexts, in the order of `ast.iter_child_nodes`.

    The fields of the node are all set: `ast.parse` sets them.
    """
    below: list[ast.AST] = []
    kind = type(node)
    for value in (_readers.get(kind) or _learn(kind))(node):
        if type(value) is list:
            below += [part for part in value if isinstance(part, ast.AST)]
        elif isinstance(value, ast.AST):
            below.append(value)
    return below


def walk(root: ast.AST) -> Iterator[ast.AST]:
    """Yield `root` and every node below it but the contexts, in the order of `ast.walk`.

    The fields of each node are all set: `ast.parse` sets them.
    """
    nodes: list[ast.AST] = [root]
    extend, push, known, tree = nodes.extend, nodes.append, _readers.get, ast.AST
    for node in nodes:  # the list grows meanwhile
        kind = type(node)
        for value in (known(kind) or _learn(kind))(node):
            if value is None:
                continue
            if type(value) is list:
                extend([part for part in value if isinstance(part, tree)])
            elif isinstance(value, tree):
                push(value)
        yield node

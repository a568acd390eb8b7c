"""What a loop goes over, and whether it already ends its graphs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from migrate.reading.tree.tree import nodes_of
from migrate.reading.values.words import STEPS

if TYPE_CHECKING:
    from migrate.reading.script import Script

Loop = cst.For | cst.While


def loops(root: cst.CSTNode) -> Iterator[Loop]:
    """Return the loops at and below `root`."""
    return nodes_of(root, cst.For | cst.While)  # type: ignore[arg-type]


def has_sync(loop: Loop, context: Script) -> bool:
    """Whether the loop, a block around it, or a function that trains in it already ends its graphs."""
    calls = list(nodes_of(loop, cst.Call))
    seen: set[int] = set()
    places: list[cst.CSTNode] = [loop]
    while places:
        for callee in context.effects.callees([places.pop()]):
            if id(callee) not in seen:
                seen.add(id(callee))
                places.append(callee.body)
                calls.extend(nodes_of(callee.body, cst.Call))
    for above in context.ancestors(loop):
        if isinstance(above, cst.With):
            calls.extend(item.item for item in above.items if isinstance(item.item, cst.Call))
    return any(context.qualified_name(call.func) in STEPS for call in calls)


def batch_names(loop: Loop) -> list[str]:
    """Return the names to which the loop binds a batch; the counter of `enumerate` is left out."""
    if not isinstance(loop, cst.For):
        return []
    target: cst.BaseExpression = loop.target
    called = loop.iter.func if isinstance(loop.iter, cst.Call) else None
    name = called.value if isinstance(called, cst.Name) else None
    if name in ("range", "trange"):
        return []
    if name == "enumerate" and isinstance(target, cst.Tuple) and len(target.elements) == 2:
        target = target.elements[1].value
    return [value for value in _names(target) if value != "_"]


def _names(target: cst.BaseExpression) -> list[str]:
    if isinstance(target, cst.Tuple | cst.List):
        return [name for element in target.elements for name in _names(element.value)]
    return [target.value] if isinstance(target, cst.Name) else []

"""Values that a loop iterates over, and whether the loop already ends its graphs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue.words import STEPS
from migrate.model.calls.kind import Kind
from migrate.syntax.tree import code, last_part, nodes_of

if TYPE_CHECKING:
    from migrate.reading.script import Script

Loop = cst.For | cst.While
# Functions that yield the same numbers in another order, or show the progress.
HANDED_ON = frozenset({"cycle", "iter", "list", "reversed", "sorted", "tqdm", "tuple"})


def loops(root: cst.CSTNode) -> Iterator[Loop]:
    """Return the loops at and below `root`."""
    return nodes_of(root, cst.For | cst.While)  # type: ignore[arg-type]


def has_sync(loop: Loop | cst.FunctionDef, context: Script) -> bool:
    """Whether the loop, a block around it, or a function that trains in it already ends its graphs.

    `MpDeviceLoader` ends the graph before it yields the next batch.
    """
    if isinstance(loop, cst.For) and context.values.kind(loop.iter) is Kind.DEVICE_LOADER:
        return True
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


def batch_names(loop: Loop, context: Script) -> list[str]:
    """Return the names that the loop binds to a batch.

    The counter of `enumerate`, or of a generator that counts, is left out, as is the key of a mapping's
    items. So are the numbers of a range
    (`zip(x, reversed(range(10)))`) and the parts of a host tensor: `for now, then in zip(times[:-1],
    times[1:])`.
    """
    return [
        name
        for target, over in _bound(loop, context)
        if over is None or not _is_of_host(over, context)
        for name in _names(target)
        if name != "_"
    ]


def numbers_of_host(loop: Loop, context: Script) -> list[str]:
    """Return the names that the loop binds to parts of host tensors."""
    return [
        name
        for target, over in _bound(loop, context)
        if over is not None and _is_of_host(over, context)
        for name in _names(target)
    ]


def on_device(loop: Loop, context: Script) -> set[str]:
    """Return the names that the loop binds to parts of device tensors."""
    return {
        name
        for target, over in _bound(loop, context)
        if over is not None and context.values.on_device(over)
        for name in _names(target)
    }


def _bound(
    loop: Loop, context: Script
) -> list[tuple[cst.BaseExpression, cst.BaseExpression | None]]:
    """Return what the loop binds besides a counter, with the iterable of each, if that is plain."""
    if not isinstance(loop, cst.For) or _called(loop.iter) in ("range", "trange"):
        return []
    target: cst.BaseExpression = loop.target
    over = context.values.bindings.iterated(loop.iter)
    if _called(over) == "enumerate" and isinstance(target, cst.Tuple) and len(target.elements) == 2:
        assert isinstance(over, cst.Call)
        target, over = target.elements[1].value, over.args[0].value if over.args else over
    elif (
        isinstance(target, cst.Tuple)
        and len(target.elements) == 2
        and (context.place(over) in context.calls.counted or _gives_items(over))
    ):
        return [(target.elements[1].value, None)]
    if isinstance(over, cst.Call) and over.args and _called(over.args[0].value) == "zip":
        over = over.args[0].value  # tqdm(zip(...))
    zipped = over.args if isinstance(over, cst.Call) and _called(over) == "zip" else ()
    zipped = [arg for arg in zipped if arg.keyword is None]  # not `strict=True`
    if isinstance(target, cst.Tuple) and len(zipped) == len(target.elements):
        pairs = zip(target.elements, zipped, strict=True)
        return [(part.value, arg.value) for part, arg in pairs]
    return [(target, over if _counts(over) else None)]


def _gives_items(value: cst.BaseExpression) -> bool:
    """Whether `value` is `mapping.items()`."""
    return isinstance(value, cst.Call) and last_part(value.func) == "items" and not value.args


def _called(value: cst.BaseExpression) -> str | None:
    """Return the name of the called function without its module: `itertools.count()`."""
    func = value.func if isinstance(value, cst.Call) else None
    if isinstance(func, cst.Attribute) and code(func.value) == "itertools":
        return func.attr.value
    return func.value if isinstance(func, cst.Name) else None


def _is_of_host(value: cst.BaseExpression, context: Script) -> bool:
    """Whether `value` counts, or is a part of a host value, such as a tensor that is not moved."""
    if _counts(value):
        return True
    return isinstance(value, cst.Subscript) and context.values.kind(value) is Kind.HOST


def _counts(value: cst.BaseExpression) -> bool:
    """Whether `value` is a range of numbers, also reversed, wrapped in a progress bar, or as a list."""
    while _called(value) in HANDED_ON:
        args = cst.ensure_type(value, cst.Call).args
        if not args:
            return False
        value = args[0].value
    if isinstance(value, cst.Subscript):
        return _counts(value.value)
    if isinstance(value, cst.List | cst.Tuple):
        return bool(value.elements) and all(
            isinstance(element.value, cst.Integer | cst.Float) for element in value.elements
        )
    return _called(value) in ("range", "trange", "count")


def _names(target: cst.BaseExpression) -> list[str]:
    if isinstance(target, cst.Tuple | cst.List):
        return [name for element in target.elements for name in _names(element.value)]
    return [target.value] if isinstance(target, cst.Name) else []

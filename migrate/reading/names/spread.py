"""Keyword arguments that a call receives through dictionaries: `DDP(model, **options)`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import libcst as cst

from migrate.syntax.tree import code, string_value

if TYPE_CHECKING:
    from migrate.reading.names.parsed import Parsed


@dataclass(frozen=True)
class KeywordEntry:
    """Keyword argument held by a dictionary.

    Attributes:
        key: the name of the argument.
        value: the value of the entry.
        holder: the dictionary or call that holds the entry, or the assignment that writes it.
        index: the position of the entry in the holder; -1 for an assignment.
    """

    key: str
    value: cst.BaseExpression
    holder: cst.Dict | cst.Call | cst.Assign
    index: int = -1


@dataclass
class Spread:
    """Keyword arguments that one `**` argument may pass.

    Attributes:
        entries: the keyword arguments that the script puts into the dictionary.
        complete: whether these are all keyword arguments that the dictionary may hold.
        others: other uses of the dictionary: calls that receive it, reads of its entries.
    """

    entries: list[KeywordEntry] = field(default_factory=list)
    complete: bool = True
    others: list[cst.CSTNode] = field(default_factory=list)


def spread_of(arg: cst.Arg, context: Parsed) -> Spread:
    """Return the keyword arguments that `arg`, a `**` argument, passes."""
    spread = Spread()
    _read(arg.value, spread, context)
    return spread


def _read(value: cst.CSTNode | None, spread: Spread, context: Parsed) -> None:
    if isinstance(value, cst.IfExp):
        _read(value.body, spread, context)
        _read(value.orelse, spread, context)
    elif isinstance(value, cst.BooleanOperation):
        _read(value.left, spread, context)
        _read(value.right, spread, context)
    elif isinstance(value, cst.Dict):
        _read_literal(value, spread, context)
    elif isinstance(value, cst.Call) and code(value.func) == "dict":
        _read_call(value, spread, context)
    elif isinstance(value, cst.Name):
        _read_variable(value, spread, context)
    else:
        spread.complete = False


def _read_literal(value: cst.Dict, spread: Spread, context: Parsed) -> None:
    for index, element in enumerate(value.elements):
        key = string_value(element.key) if isinstance(element, cst.DictElement) else None
        if key is not None:
            spread.entries.append(KeywordEntry(key, element.value, value, index))
        elif isinstance(element, cst.StarredDictElement):
            _read(element.value, spread, context)
        else:
            spread.complete = False


def _read_call(value: cst.Call, spread: Spread, context: Parsed) -> None:
    for index, arg in enumerate(value.args):
        if arg.keyword is not None:
            spread.entries.append(KeywordEntry(arg.keyword.value, arg.value, value, index))
        elif arg.star == "*":
            spread.complete = False
        else:
            _read(arg.value, spread, context)


def _read_variable(name: cst.Name, spread: Spread, context: Parsed) -> None:
    bindings = context.bindings(name)
    if not bindings:
        spread.complete = False
        return
    owner = bindings[0].scope
    bound = {id(binding.node) for binding in bindings}
    for binding, value in zip(bindings, context.bound_values(name), strict=True):
        grown = context.parent(binding.node)
        if isinstance(grown, cst.AugAssign):
            _read(grown.value, spread, context)
        elif isinstance(value, cst.Dict | cst.Call | cst.IfExp):
            _read(value, spread, context)
        else:
            spread.complete = False
    for mention in context.references(name.value):
        if mention is name or id(mention) in bound or _is_no_use(mention, context):
            continue
        same = context.bindings(mention)
        if same and same[0].scope is owner:
            _read_use(mention, spread, context)


def _is_no_use(mention: cst.Name, context: Parsed) -> bool:
    """Whether `mention` is only spelled like the variable: a keyword of a call, an attribute."""
    above = context.parent(mention)
    if isinstance(above, cst.Arg):
        return above.keyword is mention
    return isinstance(above, cst.Attribute) and above.attr is mention


def _read_use(mention: cst.Name, spread: Spread, context: Parsed) -> None:
    above = context.parent(mention)
    if isinstance(above, cst.Subscript) and above.value is mention:
        _read_entry(above, spread, context)
        return
    call = context.parent(above)
    if isinstance(above, cst.Attribute) and isinstance(call, cst.Call) and call.func is above:
        if above.attr.value == "update":
            _read_call(call, spread, context)
            return
        if above.attr.value in ("get", "items", "keys", "values", "copy"):
            spread.others.append(call)
            return
    if isinstance(above, cst.Arg) and above.star != "**":
        spread.complete = False  # another function may add to it
    spread.others.append(above if above is not None else mention)


def _read_entry(subscript: cst.Subscript, spread: Spread, context: Parsed) -> None:
    index = subscript.slice[0].slice
    key = string_value(index.value) if isinstance(index, cst.Index) else None
    target = context.parent(subscript)
    assign = context.parent(target)
    if not isinstance(target, cst.AssignTarget) or not isinstance(assign, cst.Assign):
        spread.others.append(subscript)
    elif key is None:
        spread.complete = False
    else:
        spread.entries.append(KeywordEntry(key, assign.value, assign))


def others_than(spread: Spread, calls: frozenset[int], context: Parsed) -> Iterator[cst.CSTNode]:
    """Yield the uses of the dictionary besides the `**` arguments of the calls with ids in `calls`."""
    for node in spread.others:
        passes = isinstance(node, cst.Arg) and node.star == "**"
        if not passes or id(context.parent(node)) not in calls:
            yield node

"""What follows from options and counters alone comes out the same on all replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from migrate.reading.replicas.pure import same_everywhere
from migrate.reading.tree.tree import code, nodes_of, used
from migrate.reading.values.words import METRIC

if TYPE_CHECKING:
    from migrate.reading.names.parsed import Parsed

PLAIN = frozenset({"int", "len", "max", "min", "round"})
DEEPEST = 6


def follows_from_options(test: cst.BaseExpression, context: Parsed) -> bool:
    """Whether all names of `test` are bound to numbers, and to what follows from such names.

    A parameter counts where its default is a number: an option of the training.
    """
    return _plain(test) and all(_follows(name, context, set()) for name in used(test))


def _plain(value: cst.BaseExpression) -> bool:
    if any(True for _ in nodes_of(value, cst.Attribute)):
        return same_everywhere(value)
    return all(code(call.func) in PLAIN for call in nodes_of(value, cst.Call))


def _follows(name: cst.Name | cst.Attribute, context: Parsed, under_way: set[str]) -> bool:
    text = code(name)
    if text in PLAIN or text in ("None", "True", "False") or text in under_way:
        return True
    if same_everywhere(name):
        return True
    if isinstance(name, cst.Attribute) or METRIC.fullmatch(text) or len(under_way) > DEEPEST:
        return False
    bindings = context.bindings(name)
    for binding in bindings:
        node = binding.node
        if isinstance(node, cst.Param):
            if not isinstance(node.default, cst.Integer | cst.Float):
                return False
            continue
        above = context.parent(node)
        made = context.parent(above) if isinstance(above, cst.AssignTarget) else above
        value = getattr(made, "value", None)
        if not isinstance(made, cst.Assign | cst.AnnAssign | cst.AugAssign) or value is None:
            return False
        if not _plain(value):
            return False
        if not all(_follows(one, context, under_way | {text}) for one in used(value)):
            return False
    return bool(bindings)

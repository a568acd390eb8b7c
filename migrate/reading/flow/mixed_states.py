"""Dictionaries that hold tensors of a checkpoint beside those of a model: the host's beside the device's.

`load_state_dict` copies each to where its parameter is. Whatever joins them raises.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue.words import SAVE, words
from migrate.model.calls.kind import Kind
from migrate.reading.flow.loaded import is_loaded
from migrate.syntax.tree import code, last_part, nodes_of

if TYPE_CHECKING:
    from migrate.reading.facts import Facts

# Methods of a dictionary or a tensor whose result holds no other tensor's values.
DESCRIBES = words("keys shape size dtype ndim dim numel")
OF_STATE = words("get items values copy clone detach contiguous float half bfloat16 double")
DEEPEST = 6
Put = tuple[cst.BaseExpression, cst.BaseExpression]


def put(node: cst.CSTNode) -> Put | None:
    """Return a dictionary and what a statement puts into it: `state[k] = x`, `state.update(x)`."""
    if isinstance(node, cst.Assign):
        target = node.targets[0].target
        if len(node.targets) == 1 and isinstance(target, cst.Subscript):
            return target.value, node.value
        return None
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute):
        return None
    is_update = node.func.attr.value == "update" and len(node.args) == 1
    return (node.func.value, node.args[0].value) if is_update else None


def is_mixed(node: cst.CSTNode, facts: Facts) -> bool:
    """Whether `node` puts tensors of a model into a dictionary of loaded ones, or the other way round.

    A dictionary that is only loaded, saved or asked for its keys may hold both.
    """
    if (entry := put(node)) is None:
        return False
    holder, value = entry
    if not isinstance(holder, cst.Name):
        return False
    is_model = _is_of_model(value, facts)
    if not is_model and not is_loaded(value, facts):
        return False
    around = facts.context.function_around(node) or facts.context.module
    puts = [*nodes_of(around, cst.Assign), *nodes_of(around, cst.Call)]
    entries = [e for e in map(put, puts) if e is not None and code(e[0]) == holder.value]
    beside = [v for _, v in entries if v is not value]
    if is_model:
        is_both = any(is_loaded(v, facts) for v in (holder, *beside))
    else:  # the entry of the model is reported, if there is one
        is_both = _is_of_model(holder, facts) and not any(_is_of_model(v, facts) for v in beside)
    if not is_both:
        return False
    return any(_joins(mention, facts) for mention in _mentions(holder, around))


def _mentions(name: cst.Name, around: cst.CSTNode) -> Iterator[cst.Name]:
    return (n for n in nodes_of(around, cst.Name) if n.value == name.value)


def _is_of_model(node: cst.BaseExpression, facts: Facts, depth: int = 0) -> bool:
    """Whether `node` is the state_dict of a module, or a part of it, where the module keeps it."""
    if depth > DEEPEST:
        return False
    if isinstance(node, cst.Subscript):
        return _is_of_model(node.value, facts, depth + 1)
    if isinstance(node, cst.Name):
        values = facts.values.given_to(node)
        return any(_is_of_model(value, facts, depth + 1) for value in values)
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        holder = node.func.value
        if node.func.attr.value == "state_dict":
            return facts.values.kind(holder) is Kind.MODEL and not facts.values.is_surely_cpu(
                holder
            )
        return node.func.attr.value in OF_STATE and _is_of_model(holder, facts, depth + 1)
    return False


def _joins(mention: cst.Name, facts: Facts) -> bool:
    """Whether a mention of the dictionary may join its tensors, or hands it on."""
    context = facts.context
    node: cst.CSTNode = mention
    above = context.parent(node)
    while isinstance(above, cst.Subscript | cst.Attribute) and above.value is node:
        if isinstance(above, cst.Attribute) and above.attr.value in DESCRIBES | {"update"}:
            return False
        node, above = above, context.parent(above)
    if isinstance(above, cst.AssignTarget | cst.CompFor | cst.For | cst.Comparison):
        return False
    if isinstance(above, cst.ComparisonTarget | cst.Del):
        return False
    if isinstance(above, cst.Call) and above.func is node:
        return not _is_walked(above, facts)
    if isinstance(above, cst.Arg):
        call = context.parent(above)
        if isinstance(call, cst.Call):
            last = last_part(call.func)
            return last not in ("load_state_dict", "len", "save") and not SAVE.search(last)
    return True


def _is_walked(call: cst.Call, facts: Facts) -> bool:
    """Whether `call` is what a loop goes over that fills the dictionary, or asks for its keys alone."""
    above = facts.context.parent(call)
    if not isinstance(above, cst.For | cst.CompFor) or above.iter is not call:
        return False
    keys = last_part(call.func) == "keys"
    return keys or any(put(inner) is not None for inner in facts.below(above, cst.Assign))

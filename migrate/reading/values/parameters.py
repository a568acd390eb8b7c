"""Expressions that hold the parameters of a model or their gradients: `group["params"]`, `p.grad`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue.words import words
from migrate.syntax.tree import bind, dotted, nodes, string_value

if TYPE_CHECKING:
    from migrate.reading.script import Script

ASKED = words("parameters named_parameters")


def holds_parameters(
    node: cst.CSTNode | None, context: Script, seen: set[int] | None = None
) -> bool:
    """Whether `node` is made from parameters or gradients, also through names, attributes and calls.

    Args:
        node: an expression.
        context: the script.
        seen: values visited by the same search: each is followed once.
    """
    seen = set() if seen is None else seen
    if node is None or id(node) in seen:
        return False
    seen.add(id(node))
    for part in nodes(node):
        if isinstance(part, cst.Attribute):
            if part.attr.value in ASKED | {"grad", "param_groups"}:
                return True
        elif _is_group_key(part, context):
            return True
    return any(
        _binds_parameters(part, context, seen)
        for part in context.below(node, cst.Name)
        if not _is_attribute_name(part, context)
    )


def goes_over_weights(loop: cst.CSTNode, context: Script) -> bool:
    """Whether `loop` goes over the weights of a model: its parameters, or `model.state_dict().values()`."""
    return isinstance(loop, cst.For) and (
        holds_parameters(loop.iter, context)
        or any(part.attr.value == "state_dict" for part in context.below(loop.iter, cst.Attribute))
    )


def is_in_optimizer(node: cst.CSTNode, context: Script) -> bool:
    """Whether `node` is in a class that derives from a torch optimizer."""
    around = context.class_around(node)
    seen: set[int] = set()
    while around is not None and id(around) not in seen:
        seen.add(id(around))
        names = [
            context.qualified_name(base.value) or dotted(base.value)
            for base in around.bases
            if base.keyword is None
        ]
        if any(name.startswith("torch.optim.") for name in names):
            return True
        classes = {node.name.value: node for node in context.all_of(cst.ClassDef)}
        if any(name.rpartition(".")[2].endswith("Optimizer") for name in names):
            return True
        around = next((classes[name] for name in names if name in classes), None)
    return False


def _is_group_key(node: cst.CSTNode, context: Script) -> bool:
    """Whether `node` is the key of `group["params"]`."""
    return string_value(node) == "params" and isinstance(context.parent(node), cst.Index)


def _is_attribute_name(name: cst.Name, context: Script) -> bool:
    above = context.parent(name)
    return isinstance(above, cst.Attribute) and above.attr is name and not _is_of_self(above)


def _is_of_self(node: cst.Attribute) -> bool:
    return isinstance(node.value, cst.Name) and node.value.value == "self"


def _binds_parameters(name: cst.Name, context: Script, seen: set[int]) -> bool:
    """Whether `name`, a variable or an attribute of `self`, is assigned parameters."""
    above = context.parent(name)
    if isinstance(above, cst.Attribute) and above.attr is name:
        values = context.values.given_to(above)
        return any(holds_parameters(value, context, seen) for value in values)
    for binding in context.bindings(name):
        if isinstance(binding.node, cst.Param):
            if _is_given_parameters(binding.node, context, seen):
                return True
            continue
        value = value_of(binding.node, context)
        if value is not None and holds_parameters(value, context, seen):
            return True
    return False


def value_of(target: cst.CSTNode, context: Script) -> cst.BaseExpression | None:
    """Return the value or iterable from which an assignment or a loop binds the name `target`."""
    for above in context.within_statement(target):
        if isinstance(above, cst.Assign | cst.AnnAssign | cst.NamedExpr):
            return above.value
        if isinstance(above, cst.For | cst.CompFor):
            return above.iter
    return None


def _is_given_parameters(param: cst.Param, context: Script, seen: set[int]) -> bool:
    """Whether a function gets parameters as `param`: from a call, or as an optimizer does."""
    function = context.function_around(param)
    if id(param) in seen or not isinstance(function, cst.FunctionDef):
        return False
    seen.add(id(param))
    line = context.position(function.name).line
    if (line, param.name.value) in context.calls.given_parameters:
        return True
    names = [parameter.name.value for parameter in function.params.params]
    if function.name.value == "__init__" and is_in_optimizer(function, context):
        return names[1:2] == [param.name.value]
    is_method = names[:1] == ["self"]
    for call in context.callers.get(id(function), ()):
        argument = (bind(call, names[is_method:]) or {}).get(param.name.value)
        if argument is not None and holds_parameters(argument.value, context, seen):
            return True
    return False

"""Which tensors are certainly on the host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue.words import DATASETS, KEEPING
from migrate.model.calls.kind import Kind
from migrate.reading.names.bindings import passed_for
from migrate.reading.values.values import place_of_load
from migrate.syntax.tree import base_name, code, is_attribute_of_self, last_part, nodes_of

if TYPE_CHECKING:
    from migrate.reading.script import Script


def is_on_the_cpu(value: cst.BaseExpression, context: Script) -> bool:
    """Whether `value` is certainly a tensor of the CPU, or a list of such."""
    if isinstance(value, cst.Name):
        owner, made = context.bound_to(value)
        if made is None or isinstance(made, cst.Param | cst.Name):
            return False
        if isinstance(made, cst.Call) and place_of_load(made) is not None:
            # A checkpoint: what is put into it stays where it is.
            inside = owner if isinstance(owner, cst.FunctionDef) else context.module
            if not all(_is_of_itself(item, value.value) for item in items_put(value.value, inside)):
                return False
        return is_on_the_cpu(made, context)
    if isinstance(value, cst.ListComp):
        return is_on_the_cpu(value.elt, context)
    if isinstance(value, cst.List):
        elements = [element.value for element in value.elements]
        return bool(elements) and all(is_on_the_cpu(one, context) for one in elements)
    if not isinstance(value, cst.Call):
        return False
    if isinstance(value.func, cst.Attribute) and value.func.attr.value == "cpu":
        return not value.args
    if context.values.made(value) is not Kind.HOST or any(arg.star for arg in value.args):
        return False
    # What `torch.tensor(x)` makes is where the tensor x is.
    of_data = code(value.func).endswith("ensor") and value.args
    return not of_data or _is_of_the_host(value.args[0].value)


def is_dataset(value: cst.BaseExpression, context: Script) -> bool:
    """Whether `value` is a dataset of torchvision, or an attribute of one: files and numbers of the host."""
    while isinstance(value, cst.Attribute) and not is_attribute_of_self(value):
        value = value.value
    if isinstance(value, cst.IfExp):
        return is_dataset(value.body, context) and is_dataset(value.orelse, context)
    if isinstance(value, cst.Call):
        return (context.qualified_name(value.func) or "").startswith(DATASETS)
    if not isinstance(value, cst.Name):
        return False
    made = context.bound_values(value) or passed_for(value, context)
    return bool(made) and all(
        isinstance(one, cst.Call | cst.IfExp) and is_dataset(one, context) for one in made
    )


def items_put(name: str, root: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """Yield what is put into `name` below `root`: `checkpoint["epoch"] = 1`."""
    for assign in nodes_of(root, cst.Assign):
        for target in assign.targets:
            if isinstance(target.target, cst.Subscript) and base_name(target.target) == name:
                yield assign.value
    for call in nodes_of(root, cst.Call):
        of = call.func.value if isinstance(call.func, cst.Attribute) else None
        if of is not None and last_part(call.func) in KEEPING and base_name(of) == name:
            yield from (arg.value for arg in call.args)


def _is_of_itself(item: cst.BaseExpression, name: str) -> bool:
    """Whether what is put into `name` comes from there, or is plain: no tensor of another place."""
    return all(one.value in (name, "None", "True", "False") for one in nodes_of(item, cst.Name))


def _is_of_the_host(data: cst.BaseExpression) -> bool:
    """Whether `data` is a list or a number, and no tensor."""
    if isinstance(data, cst.Call):
        last = data.func.attr if isinstance(data.func, cst.Attribute) else data.func
        return isinstance(last, cst.Name) and last.value in ("float", "int", "item", "len")
    return isinstance(data, cst.List | cst.Tuple | cst.BaseNumber)

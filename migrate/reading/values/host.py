"""Tensors that are certainly on the host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue.words import DATASETS, KEEPING
from migrate.model.calls.kind import Kind
from migrate.reading.names.bindings import Assignment, How, passed_for
from migrate.reading.values.values import MADE_LOADERS, place_of_load
from migrate.syntax.tree import (
    base_name,
    code,
    is_attribute_of_self,
    keyword,
    last_part,
    nodes_of,
    string_value,
)

if TYPE_CHECKING:
    from migrate.reading.script import Script

# Functions whose result is on the device of the tensors in their list.
JOINS = frozenset(
    f"torch.{name}" for name in ("cat", "concat", "concatenate", "hstack", "stack", "vstack")
)
# Methods whose result may be on another device than the tensor.
MOVING = frozenset({"cuda", "hpu", "ipu", "mtia", "to", "type", "type_as", "xpu"})
READERS = frozenset({"get_slice", "get_tensor"})  # of a file of safetensors


def is_on_the_cpu(
    value: cst.BaseExpression, context: Script, followed: frozenset[int] = frozenset()
) -> bool:
    """Whether `value` is certainly a CPU tensor, or a list of CPU tensors.

    Args:
        value: an expression.
        context: the script.
        followed: ids of the assignments being followed: in a loop one may lead back to itself.
    """
    if isinstance(value, cst.Name):
        return _is_variable_on_the_cpu(value, context, followed)
    if isinstance(value, cst.ListComp):
        return is_on_the_cpu(value.elt, context, followed)
    if isinstance(value, cst.List):
        elements = [element.value for element in value.elements]
        return bool(elements) and all(
            is_on_the_cpu(element, context, followed) for element in elements
        )
    if isinstance(value, cst.Subscript):
        return _is_of_loader(value, context) or is_on_the_cpu(value.value, context, followed)
    if not isinstance(value, cst.Call):
        return False
    if isinstance(value.func, cst.Attribute) and value.func.attr.value == "cpu":
        return not value.args
    if isinstance(value.func, cst.Attribute) and _is_at_the_file(value.func, context):
        return True
    if (
        isinstance(value.func, cst.Attribute)
        and value.func.attr.value not in MOVING
        and is_on_the_cpu(value.func.value, context, followed)
    ):
        return True
    if context.qualified_name(value.func) in JOINS and value.args and not keyword(value, "out"):
        return is_on_the_cpu(value.args[0].value, context, followed)
    if context.values.made(value) is not Kind.HOST or any(arg.star for arg in value.args):
        return False
    # The result of `torch.tensor(x)` is on the device of the tensor x.
    of_data = code(value.func).endswith("ensor") and value.args
    return not of_data or _is_of_the_host(value.args[0].value)


def _is_variable_on_the_cpu(name: cst.Name, context: Script, followed: frozenset[int]) -> bool:
    """Whether all values assigned to the variable `name`, or put into it, are on the CPU."""
    assignments = context.values.bindings.given(name)
    if not assignments or len(assignments) != len(context.bindings(name)):
        return False
    if context.loop_around(name) is None:  # in a loop, a value assigned below may be here
        assignments = context.values.bindings.reaching(name) or assignments
    assignments = [assignment for assignment in assignments if id(assignment) not in followed]
    if all(
        _is_of_loader(assignment.value, context) or _is_element(assignment, context)
        for assignment in assignments
    ):
        return True
    if any(
        assignment.how is not How.VALUE or isinstance(assignment.value, cst.Name)
        for assignment in assignments
    ):
        return False
    followed |= {id(assignment) for assignment in assignments}
    put = [stored.value for stored in context.values.bindings.put_into(name)]
    for assignment in assignments:
        value = assignment.value
        if isinstance(value, cst.List) and not value.elements and len(put) > 0:
            if not all(is_on_the_cpu(item, context, followed) for item in put):
                return False
            continue
        if isinstance(value, cst.Call) and place_of_load(value) is not None:
            # A checkpoint: values put into it stay where they are.
            function = context.function_around(value)
            inside = function if function is not None else context.module
            if not all(_is_of_itself(item, name.value) for item in items_put(name.value, inside)):
                return False
        if value is None or not is_on_the_cpu(value, context, followed):
            return False
    return True


def _is_at_the_file(func: cst.Attribute, context: Script) -> bool:
    """Whether `func` reads a file of safetensors: `with safe_open(path, "pt") as f: f.get_slice`."""
    if func.attr.value not in READERS or not isinstance(func.value, cst.Name):
        return False
    bindings = context.bindings(func.value)
    opened = []
    for binding in bindings:
        item = context.parent(context.parent(binding.node) or binding.node)
        source = item.item if isinstance(item, cst.WithItem) else context.value_of(binding)
        if isinstance(source, cst.Call):
            opened.append(source)
    return (
        bool(bindings) and len(opened) == len(bindings) and all(_opens(c, context) for c in opened)
    )


def _opens(call: cst.Call, context: Script) -> bool:
    """Whether `call` opens a file of safetensors for the CPU."""
    name = context.qualified_name(call.func)
    if name not in ("safetensors.safe_open", "safetensors.torch.safe_open"):
        return False
    device = keyword(call, "device") or (call.args[2] if len(call.args) > 2 else None)
    return device is None or string_value(device.value) == "cpu"


def _is_of_loader(value: cst.BaseExpression | None, context: Script, depth: int = 8) -> bool:
    """Whether `value` is a part of a host loader's batch, and nothing has moved it."""
    while isinstance(value, cst.Subscript):
        value = value.value
    if not isinstance(value, cst.Name) or not depth:
        return False
    assignments = context.values.bindings.given(value)
    return bool(assignments) and all(
        _is_element(assignment, context, depth - 1) for assignment in assignments
    )


def _is_element(assignment: Assignment, context: Script, depth: int = 8) -> bool:
    """Whether a name is assigned a part of a host loader's batch."""
    if (
        assignment.value is None
        or not depth
        or assignment.how in (How.ADDED, How.OTHER, How.COUNTER)
    ):
        return False
    if assignment.how is How.ELEMENT and _is_host_loader(assignment.value, context):
        return True
    return _is_of_loader(assignment.value, context, depth)


def _is_host_loader(value: cst.BaseExpression, context: Script) -> bool:
    """Whether `value` is a DataLoader, a list of loaders, or a zip of them: their batches are on the host."""
    if isinstance(value, cst.Name):
        values = context.bound_values(value)
        followed = [
            source for source in values if isinstance(source, cst.Call | cst.ListComp | cst.List)
        ]
        return (
            bool(values)
            and len(followed) == len(values)
            and all(_is_host_loader(source, context) for source in followed)
        )
    if isinstance(value, cst.ListComp):
        return _is_host_loader(value.elt, context)
    if isinstance(value, cst.List):
        return bool(value.elements) and all(
            _is_host_loader(e.value, context) for e in value.elements
        )
    if not isinstance(value, cst.Call):
        return False
    if isinstance(value.func, cst.Name) and value.func.value == "zip":
        return bool(value.args) and all(_is_host_loader(arg.value, context) for arg in value.args)
    return context.qualified_name(value.func) in MADE_LOADERS


def is_dataset(value: cst.BaseExpression, context: Script) -> bool:
    """Whether `value` is a torchvision dataset, or an attribute of one: files and numbers of the host."""
    while isinstance(value, cst.Attribute) and not is_attribute_of_self(value):
        value = value.value
    if isinstance(value, cst.IfExp):
        return is_dataset(value.body, context) and is_dataset(value.orelse, context)
    if isinstance(value, cst.Call):
        return (context.qualified_name(value.func) or "").startswith(DATASETS)
    if not isinstance(value, cst.Name):
        return False
    sources = context.bound_values(value)
    if len(sources) > 1 and context.loop_around(value) is None:
        # `data = torch.load(path)` in one branch; in the other branch the data is made and saved.
        reaching = context.values.bindings.reaching(value)
        if all(assignment.how is How.VALUE for assignment in reaching):
            sources = [assignment.value for assignment in reaching]
    sources = sources or [*passed_for(value, context)]
    return bool(sources) and all(
        isinstance(source, cst.Call | cst.IfExp) and is_dataset(source, context)
        for source in sources
    )


def items_put(name: str, root: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """Yield the values put into `name` below `root`: `checkpoint["epoch"] = 1`."""
    for assign in nodes_of(root, cst.Assign):
        for target in assign.targets:
            if isinstance(target.target, cst.Subscript) and base_name(target.target) == name:
                yield assign.value
    for call in nodes_of(root, cst.Call):
        of = call.func.value if isinstance(call.func, cst.Attribute) else None
        if of is not None and last_part(call.func) in KEEPING and base_name(of) == name:
            yield from (arg.value for arg in call.args)


def _is_of_itself(item: cst.BaseExpression, name: str) -> bool:
    """Whether the value put into `name` comes from `name`, or is plain: no tensor of another device."""
    return all(node.value in (name, "None", "True", "False") for node in nodes_of(item, cst.Name))


def _is_of_the_host(data: cst.BaseExpression) -> bool:
    """Whether `data` is a list or a number, and no tensor."""
    if isinstance(data, cst.Call):
        last = data.func.attr if isinstance(data.func, cst.Attribute) else data.func
        return isinstance(last, cst.Name) and last.value in ("float", "int", "item", "len")
    return isinstance(data, cst.List | cst.Tuple | cst.BaseNumber)

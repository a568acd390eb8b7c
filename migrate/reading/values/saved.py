"""Contents and target of a `torch.save` call, or of a safetensors call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue.drawing import HOST_STATES
from migrate.catalogue.words import DATASETS, READ_METHODS, SAFETENSORS_SAVES, TORCH_SAVES
from migrate.reading.names.bindings import passed_for
from migrate.reading.values.host import MOVING, is_dataset, is_on_the_cpu, items_put
from migrate.syntax.tree import bind, is_none, keyword, last_part, string_value

if TYPE_CHECKING:
    from migrate.reading.names.parsed import Parsed
    from migrate.reading.script import Script


SAVES = TORCH_SAVES | SAFETENSORS_SAVES
TORCH_DATA = "torch.utils.data."
GRAPH_DATA = "torch_geometric.data."
PARAMETERS = ("obj", "f", "pickle_module", "pickle_protocol", "_use_new_zipfile_serialization")
# Parameters of safetensors, each with the name of the same parameter in torch.save.
OF_SAFETENSORS = {"tensors": "obj", "model": "obj", "filename": "f"}
POSITIONS = {
    "safetensors.torch.save_file": ("obj", "f", "metadata"),
    "safetensors.torch.save_model": ("obj", "f", "metadata", "force_contiguous"),
}


def is_save(call: cst.Call, context: Parsed, *, also_xla: bool = False) -> bool:
    """Whether `call` is torch.save, or a safetensors function that writes a file.

    Args:
        call: the call.
        context: the script.
        also_xla: whether torch_xla's own saves, which the rewrite writes, count too.
    """
    name = context.qualified_name(call.func)
    return name == "torch.save" or name in (SAVES if also_xla else SAFETENSORS_SAVES)


def arguments(call: cst.Call, context: Parsed) -> dict[str, cst.Arg] | None:
    """Return the arguments of a save by their names in torch.save; None if they cannot be read."""
    positions = POSITIONS.get(context.qualified_name(call.func) or "")
    if positions is None:
        return bind(call, PARAMETERS)
    bound: dict[str, cst.Arg] = {}
    for number, arg in enumerate(call.args):
        if arg.star or (arg.keyword is None and number >= len(positions)):
            return None
        name = arg.keyword.value if arg.keyword is not None else positions[number]
        bound[OF_SAFETENSORS.get(name, name)] = arg
    return bound


def contents(
    saved: cst.BaseExpression, context: Script, depth: int = 3
) -> Iterator[cst.BaseExpression]:
    """Yield `saved`, and the values of a dict: `{"net": net}`, `dict(net=net)`, or a variable with one."""
    yield saved
    if depth == 0:
        return
    if isinstance(saved, cst.Dict):
        for element in saved.elements:
            yield from contents(element.value, context, depth - 1)
    elif isinstance(saved, cst.Call) and isinstance(saved.func, cst.Name):
        for arg in saved.args if saved.func.value == "dict" else ():
            yield from contents(arg.value, context, depth - 1)
    elif isinstance(saved, cst.Name):
        for assignment in context.values.bindings.reaching(saved):
            if isinstance(assignment.value, cst.Dict | cst.Call):
                held = contents(assignment.value, context, depth - 1)
                next(held)  # the container itself
                yield from held


def is_of_host(call: cst.Call, context: Script) -> bool:
    """Whether the contents that `call` saves are plainly on the host: `x.cpu()`, a number, a dataset."""
    saved = (arguments(call, context) or {}).get("obj")
    if saved is None:
        return False
    if context.place(call) in context.calls.host_saves or _is_in_dataset(call, context):
        return True
    return _is_host_value(saved.value, context)


def _is_in_dataset(call: cst.Call, context: Script) -> bool:
    """Whether a method of a dataset saves, and the class names no device: the loader's workers run it."""
    around = context.class_around(call)
    names = (context.qualified_name(base.value) or "" for base in (around.bases if around else ()))
    if around is None or not any(_is_dataset_class(name) for name in names):
        return False
    return not any(
        (isinstance(inner.func, cst.Attribute) and inner.func.attr.value in MOVING)
        or keyword(inner, "device") is not None
        for inner in context.below(around, cst.Call)
    )


def _is_dataset_class(name: str) -> bool:
    return name.startswith((DATASETS, TORCH_DATA, GRAPH_DATA)) and name.endswith("Dataset")


def _is_host_value(value: cst.BaseExpression, context: Script) -> bool:
    if isinstance(value, cst.BaseNumber | cst.SimpleString | cst.FormattedString):
        return True
    if isinstance(value, cst.Dict):
        parts = [part.value for part in value.elements if isinstance(part, cst.DictElement)]
        return len(parts) == len(value.elements) and all(_is_part(p, context) for p in parts)
    if isinstance(value, cst.Tuple | cst.List):
        return all(_is_part(element.value, context) for element in value.elements)
    if isinstance(value, cst.Name):
        bound = context.bound_to(value)[1]
        if _is_dict_of_host(value, context):
            return True
        value = bound if isinstance(bound, cst.DictComp) else value
    if isinstance(value, cst.Call) and context.qualified_name(value.func) in HOST_STATES:
        return True
    inner = value.value if isinstance(value, cst.DictComp) else value
    while isinstance(inner, cst.Call) and isinstance(inner.func, cst.Attribute):
        if inner.func.attr.value in READ_METHODS:
            return True  # also for containers of tensors: `model.cpu().state_dict()`
        inner = inner.func.value
    return (
        is_on_the_cpu(value, context)
        or is_dataset(value, context)
        or _is_passed_loaded(value, context)
    )


def _returns_host(call: cst.Call, context: Script, depth: int) -> bool:
    """Whether `call` runs a function of the script that returns a dict of host values."""
    returned = [
        statement.value
        for function in context.called(call)
        for statement in context.below(function.body, cst.Return)
    ]
    return bool(returned) and all(
        _is_dict_of_host(value, context, depth)
        if isinstance(value, cst.Name)
        else isinstance(value, cst.Dict) and _is_host_value(value, context)
        for value in returned
    )


def _is_dict_of_host(name: cst.Name, context: Script, depth: int = 3) -> bool:
    """Whether each value of the variable `name` is a dict of values in host memory."""
    values = context.bound_values(name)
    in_turns = any(
        isinstance(ancestor, cst.For | cst.While) for ancestor in context.ancestors(name)
    )
    if not in_turns and all(value is not None for value in values):
        values = [assignment.value for assignment in context.values.bindings.reaching(name)]
    if len(values) == 1 and isinstance(values[0], cst.Call) and depth:
        return _returns_host(values[0], context, depth - 1)
    if not values or not all(isinstance(value, cst.Dict) and value.elements for value in values):
        return False
    put = [stored.value for stored in context.values.bindings.put_into(name)]
    parts = [part for part in (*values, *put) if isinstance(part, cst.BaseExpression)]
    return all(_is_host_value(part, context) for part in parts)


def _is_part(value: cst.BaseExpression, context: Script) -> bool:
    """Whether a part of the saved contents is plainly in host memory."""
    whole = value
    while isinstance(whole, cst.Subscript):
        whole = whole.value
    return (
        is_none(value)
        or _is_host_value(value, context)
        or _is_loaded(value, context)
        or _is_passed_loaded(whole, context)
    )


def _is_passed_loaded(value: cst.BaseExpression, context: Script) -> bool:
    """Whether `value` is a parameter for which every call passes a value loaded on the CPU."""
    passed = passed_for(value, context) if isinstance(value, cst.Name) else []
    return bool(passed) and all(_is_loaded(value, context) for value in passed)


def _is_loaded(value: cst.BaseExpression, context: Script) -> bool:
    """Whether `value` is a checkpoint loaded on the CPU, a part of one, or a dict of parts."""
    if isinstance(value, cst.Dict):
        parts = [
            element.value for element in value.elements if isinstance(element, cst.DictElement)
        ]
        return len(parts) == len(value.elements) and all(_is_loaded(p, context) for p in parts)
    while isinstance(value, cst.Subscript):
        value = value.value
    if not isinstance(value, cst.Name):
        return False
    owner, _ = context.bound_to(value)
    inside = owner if isinstance(owner, cst.FunctionDef) else context.module
    values = context.bound_values(value)
    loaded = all(
        isinstance(source, cst.Call) and (is_on_the_cpu(source, context) or _downloads(source))
        for source in values
    )
    return bool(values) and loaded and next(items_put(value.value, inside), None) is None


def _downloads(call: cst.Call) -> bool:
    """Whether `call` is `load_state_dict_from_url(url, map_location="cpu")`."""
    place = keyword(call, "map_location")
    of_hub = last_part(call.func) in ("load_state_dict_from_url", "load_url")
    return of_hub and place is not None and string_value(place.value) == "cpu"

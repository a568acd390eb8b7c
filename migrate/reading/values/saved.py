"""What a call of `torch.save`, or of safetensors, saves, and where."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from migrate.reading.tree.tree import bind
from migrate.reading.values.host import is_on_the_cpu
from migrate.reading.values.words import READ_METHODS, SAFETENSORS_SAVES

if TYPE_CHECKING:
    from migrate.reading.names.parsed import Parsed
    from migrate.reading.script import Script


PARAMETERS = ("obj", "f", "pickle_module", "pickle_protocol", "_use_new_zipfile_serialization")
# The parameters of safetensors, each by what torch.save calls the same.
OF_SAFETENSORS = {"tensors": "obj", "model": "obj", "filename": "f"}
POSITIONS = {
    "safetensors.torch.save_file": ("obj", "f", "metadata"),
    "safetensors.torch.save_model": ("obj", "f", "metadata", "force_contiguous"),
}


def is_save(call: cst.Call, context: Parsed) -> bool:
    """Whether `call` is one of torch.save, or of a function of safetensors that writes a file."""
    name = context.qualified_name(call.func)
    return name == "torch.save" or name in SAFETENSORS_SAVES


def arguments(call: cst.Call, context: Parsed) -> dict[str, cst.Arg] | None:
    """Return the arguments of a save by the names of torch.save; None where they cannot be read."""
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


def is_of_host(call: cst.Call, context: Script) -> bool:
    """Whether what `call` saves is plainly in the memory of the host: `x.cpu()`, an array, a number."""
    saved = (arguments(call, context) or {}).get("obj")
    value = saved.value if saved is not None else None
    if value is None or isinstance(value, cst.BaseNumber | cst.SimpleString | cst.FormattedString):
        return value is not None
    if isinstance(value, cst.Name):
        made = context.bound_to(value)[1]
        value = made if isinstance(made, cst.DictComp) else value
    inner = value.value if isinstance(value, cst.DictComp) else value
    while isinstance(inner, cst.Call) and isinstance(inner.func, cst.Attribute):
        if inner.func.attr.value in READ_METHODS:
            return True  # also of what holds tensors: `model.cpu().state_dict()`
        inner = inner.func.value
    return is_on_the_cpu(value, context)

"""Which tensors are certainly on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from migrate.reading.tree.tree import code, keyword
from migrate.reading.values.words import MADE_ON_HOST

if TYPE_CHECKING:
    from migrate.reading.script import Script


def is_on_the_cpu(value: cst.BaseExpression, context: Script) -> bool:
    """Whether `value` is certainly a tensor of the CPU, or a list of such."""
    if isinstance(value, cst.Name):
        _, made = context.bound_to(value)
        if made is None or isinstance(made, cst.Param | cst.Name):
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
    if context.qualified_name(value.func) not in MADE_ON_HOST:
        return False
    device = keyword(value, "device")
    elsewhere = device is not None and not context.values.is_surely_cpu(device.value)
    if elsewhere or any(arg.star for arg in value.args):
        return False
    # `torch.tensor(x)` is where the tensor x is.
    of_data = code(value.func).endswith("ensor") and value.args
    return not of_data or _is_of_the_host(value.args[0].value)


def _is_of_the_host(data: cst.BaseExpression) -> bool:
    """Whether `data` is a list or a number, and no tensor."""
    if isinstance(data, cst.Call):
        last = data.func.attr if isinstance(data.func, cst.Attribute) else data.func
        return isinstance(last, cst.Name) and last.value in ("float", "int", "item", "len")
    return isinstance(data, cst.List | cst.Tuple | cst.BaseNumber)

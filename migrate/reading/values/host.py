"""Which values are certainly in the memory of the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from migrate.reading.tree.tree import code, keyword
from migrate.reading.values.words import MADE_ON_HOST, words

if TYPE_CHECKING:
    from migrate.reading.script import Script


# Methods after which a tensor, or what holds some, is on the host, and those after which it may be elsewhere.
READ = words("cpu item numpy tolist")
MOVING = words("cuda to type type_as")


def is_on_the_cpu(value: cst.BaseExpression, context: Script) -> bool:
    """Whether `value` is certainly a tensor of the CPU, what is read of one, or a list of such."""
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
    if isinstance(value.func, cst.Attribute):
        method = value.func.attr.value
        if method in READ and not value.args:
            return True
        if isinstance(value.func.value, cst.Call) and method not in MOVING:
            return is_on_the_cpu(value.func.value, context)  # `model.cpu().state_dict()`
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

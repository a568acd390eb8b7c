"""Tensors with 64 bits per element, by the calls that made them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue.words import words
from migrate.syntax.tree import bind, keyword, last_part, nodes_of

if TYPE_CHECKING:
    from migrate.reading.script import Script

WIDE = {
    "torch.double": "float64",
    "torch.float64": "float64",
    "torch.int64": "int64",
    "torch.long": "int64",
}
# Methods and functions whose result has 64 bits for any argument.
METHODS = {"double": "float64", "long": "int64", "argmax": "int64", "argmin": "int64"}
INT_MAKERS = words(
    "arange argmax argmin randint randperm tril_indices triu_indices count_nonzero bincount"
)
OF_VALUES = words("tensor as_tensor full")
TYPES = {"DoubleTensor": "float64", "LongTensor": "int64"}
# Functions whose result has the dtype of another tensor if it is not specified.
SAME = words(
    "clone contiguous cpu cuda detach flatten max min new_empty new_full new_ones new_zeros repeat reshape "
    "squeeze unsqueeze view"
)
INTEGERS = words("len int hash id ord")
DEEPEST = 6


def wide_dtype(node: cst.CSTNode | None, context: Script, depth: int = 0) -> str:
    """Return `int64` or `float64` if `node` is certainly, or by a caller, such a tensor; otherwise empty."""
    if node is None or depth > DEEPEST:
        return ""
    if isinstance(node, cst.List | cst.Tuple):
        return next(
            filter(None, (wide_dtype(e.value, context, depth + 1) for e in node.elements)), ""
        )
    if isinstance(node, cst.IfExp):
        return wide_dtype(node.body, context, depth + 1) or wide_dtype(
            node.orelse, context, depth + 1
        )
    if isinstance(node, cst.Call):
        return _of_call(node, context, depth)
    if isinstance(node, cst.Name):
        return _of_name(node, context, depth)
    if isinstance(node, cst.Attribute):
        values = context.values.given_to(node)
        dtypes = {wide_dtype(value, context, depth + 1) for value in values}
        return dtypes.pop() if len(dtypes) == 1 else ""
    return ""


def _of_call(call: cst.Call, context: Script, depth: int) -> str:
    name = context.qualified_name(call.func) or ""
    module, _, last = name.rpartition(".")
    dtype = keyword(call, "dtype")
    if dtype is not None:
        return WIDE.get(context.qualified_name(dtype.value) or "", "")
    if module in ("torch", "torch.cuda"):
        if last in TYPES:
            return TYPES[last]
        if last in INT_MAKERS and not (last == "arange" and not _all_integers(call, context)):
            return "int64"
        if last in OF_VALUES:
            plain = [arg.value for arg in call.args if arg.keyword is None]
            at = 1 if last == "full" else 0
            is_whole = len(plain) > at and is_integer(plain[at], context)
            return "int64" if is_whole else ""
        return ""
    if not isinstance(call.func, cst.Attribute) or name:
        return ""
    method = call.func.attr.value
    if method in METHODS:
        return METHODS[method]
    if method in ("to", "type"):
        named = [WIDE.get(context.qualified_name(arg.value) or "") for arg in call.args]
        dtypes = [name for name in named if name]
        if dtypes:
            return dtypes[0]
        is_spelled = any(
            (context.qualified_name(arg.value) or "").startswith("torch.") for arg in call.args
        )
        return (
            ""
            if is_spelled or method == "type"
            else wide_dtype(call.func.value, context, depth + 1)
        )
    if method in SAME:
        return wide_dtype(call.func.value, context, depth + 1)
    if method == "sum":  # for integers and bools the result is int64; for floats it keeps the dtype
        return wide_dtype(call.func.value, context, depth + 1)
    return ""


def _of_name(name: cst.Name, context: Script, depth: int) -> str:
    """Return the dtype of all values that the script assigns to `name`, or that a caller passes."""
    values = _values_of(name, context)
    dtypes = set()
    for value in values:
        if isinstance(value, cst.Param):
            dtypes.add(_passed(value, context, depth + 1))
        elif value is None or _mentions(value, name):
            continue  # `x = x.reshape(-1)`, or not plain to see
        else:
            dtypes.add(wide_dtype(value, context, depth + 1))
    converted = any(
        value is not None and not isinstance(value, cst.Param) and _is_conversion(value)
        for value in values
    )
    return dtypes.pop() if len(dtypes) == 1 and not converted else ""


def _values_of(name: cst.Name, context: Script) -> Sequence[cst.Param | cst.BaseExpression | None]:
    """Return all values of `name`, with what functions of the script return for it in a tuple."""
    values = context.bound_values(name)
    if None not in values:
        return values
    elements = [
        context.values.returned_elements(assignment)
        for assignment in context.values.bindings.given(name)
        if assignment.index is not None
    ]
    if not all(elements) or len(elements) != values.count(None):
        return values
    return [value for value in values if value is not None] + [e for some in elements for e in some]


def _mentions(value: cst.CSTNode, name: cst.Name) -> bool:
    return any(part.value == name.value for part in nodes_of(value, cst.Name))


def _is_conversion(value: cst.CSTNode) -> bool:
    """Whether `value` converts its operand to another dtype: `x.float()`."""
    return any(
        isinstance(call.func, cst.Attribute)
        and call.func.attr.value in ("float", "int", "half", "bool")
        for call in nodes_of(value, cst.Call)
    )


def _passed(param: cst.Param, context: Script, depth: int) -> str:
    function = context.function_around(param)
    if not isinstance(function, cst.FunctionDef):
        return ""
    names = [parameter.name.value for parameter in function.params.params]
    is_method = names[:1] == ["self"]
    for call in context.all_of(cst.Call):
        if function in context.called(call):
            argument = (bind(call, names[is_method:]) or {}).get(param.name.value)
            dtype = wide_dtype(argument.value, context, depth) if argument is not None else ""
            if dtype:
                return dtype
    return ""


def _all_integers(call: cst.Call, context: Script) -> bool:
    return all(is_integer(arg.value, context) for arg in call.args if arg.keyword is None)


def is_integer(node: cst.CSTNode | None, context: Script, depth: int = 0) -> bool:
    """Whether `node` is a Python integer, or a list of them."""
    if node is None or depth > DEEPEST:
        return False
    if isinstance(node, cst.Integer):
        return True
    if isinstance(node, cst.List | cst.Tuple):
        return bool(node.elements) and all(
            is_integer(element.value, context, depth + 1) for element in node.elements
        )
    if isinstance(node, cst.IfExp):
        sides = (node.body, node.orelse)
        return all(is_integer(side, context, depth + 1) for side in sides)
    if isinstance(node, cst.UnaryOperation):
        return not isinstance(node.operator, cst.Not) and is_integer(
            node.expression, context, depth + 1
        )
    if isinstance(node, cst.BinaryOperation):
        sides = (node.left, node.right)
        return not isinstance(node.operator, cst.Divide) and all(
            is_integer(side, context, depth + 1) for side in sides
        )
    if isinstance(node, cst.Call):
        if isinstance(node.func, cst.Name):
            return node.func.value in INTEGERS and not context.bindings(node.func)
        return isinstance(node.func, cst.Attribute) and node.func.attr.value in (
            "numel",
            "dim",
            "size",
        )
    if isinstance(node, cst.Subscript):
        return last_part(node.value) == "shape"
    if isinstance(node, cst.Name):
        values = _values_of(node, context)
        return bool(values) and all(
            value is not None
            and not isinstance(value, cst.Param)
            and is_integer(value, context, depth + 1)
            for value in values
        )
    return False

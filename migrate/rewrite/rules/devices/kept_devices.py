"""Devices that a script keeps under a name, and how it uses the name: as a device, a string, a number."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import libcst as cst

from migrate.catalogue.words import DEVICE_NAME, words
from migrate.reading.values.devices import (
    DEVICE,
    Kind,
    is_option,
    names_cuda,
    type_with_index,
)
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import bind, bound_call, last_part, string_value

# Words of names that hold a number: `num_dev = 2`, `std_dev = 0`.
_OF_NUMBERS = re.compile(
    r"(?:.*_)?(?:avg|count|max|mean|min|n|nb|no|num|number|per|st|std|total|world)_.*|.*devices|.*_count",
    re.I,
)
OF_STRINGS = words("endswith find format lower partition replace rsplit split startswith")


def says_a_device(name: str) -> bool:
    """Whether a number kept, or returned, under `name` is the index of a device by that name alone.

    `best_acc` is an accuracy, and `best_dev` what a development set gave.
    """
    words = name.lower().strip("_").split("_")
    named = words == ["dev"] or any(word in ("device", "accelerator") for word in words)
    return named and not _OF_NUMBERS.fullmatch(name)


def used_as_number(target: cst.Attribute | cst.Name, context: Workspace) -> bool:
    """Whether the project calculates with the stored device, also in a function that gets the device."""
    numbers = context.calls.device_numbers
    if numbers and any(is_number(value, context) for value in context.values.given_to(target)):
        return True
    for node in context.mentions(target):
        above = context.parent(node)
        if isinstance(above, cst.BinaryOperation) and not (
            names_cuda(above) or type_with_index(above)
        ):
            return True
        if isinstance(above, cst.AugAssign):
            return True
        if isinstance(above, cst.Index | cst.ComparisonTarget | cst.Comparison):
            return context.devices.kind(node) is Kind.INDEX
    return False


def is_number(value: cst.BaseExpression, context: Workspace) -> bool:
    """Whether `value` is the index of a device, and some code of the project calculates with the index."""
    if isinstance(value, cst.IfExp):
        return is_number(value.body, context) or is_number(value.orelse, context)
    if context.place(value) not in context.calls.device_numbers:
        return False
    return context.devices.kind(value) is Kind.INDEX


def is_device_or_number(value: cst.BaseExpression, context: Workspace) -> bool:
    """Whether `value` is a device that may also be an index which stays a number, where it is no number."""
    place = context.place(value)
    calls = context.calls
    return place in calls.devices_or_numbers and place not in calls.device_numbers


def device_variable(node: cst.CSTNode, context: Workspace) -> str:
    """Return the variable with the replica's device that the code around `node` has; "" where it has none.

    It is bound once, above `node` and in no branch, to `torch.device('cuda', …)`. A variable of the module
    counts in functions that read it already.
    """
    function = context.function_around(node)
    here = context.position(context.statement_around(node))
    for scope in (function, context.module):
        body = getattr(scope, "body", ())
        for line in getattr(body, "body", body):
            target = _plain_device(line, context)
            if target is None or context.position(line).line >= here.line:
                continue
            (binding,) = context.bindings(target)
            if function is None:
                return target.value
            names = [
                name for name in context.below(function, cst.Name) if name.value == target.value
            ]
            meant = [other.node for name in names for other in context.bindings(name)]
            if meant and all(node is binding.node for node in meant):
                return target.value
    return ""


def _plain_device(line: cst.CSTNode, context: Workspace) -> cst.Name | None:
    """Return the name that a statement binds to a device of CUDA, if no other statement binds it."""
    bound = bound_call(line)
    if bound is None:
        return None
    target, value = bound
    if not value.args:
        return None
    if context.qualified_name(value.func) not in DEVICE or isinstance(
        value.args[0].value, cst.IfExp
    ):
        return None
    is_cuda = context.devices.kind(value) is Kind.CUDA and not is_number(value, context)
    return target if is_cuda and len(context.bindings(target)) == 1 else None


def is_spelled(value: cst.BaseExpression) -> bool:
    """Whether `value` puts a text together that may be a device's: f"cuda:{i}", kind + ":" + str(i)."""
    if isinstance(value, cst.FormattedString):
        return len(value.parts) > 1
    return type_with_index(value) is not None or (
        not isinstance(value, cst.BaseString) and names_cuda(value)
    )


def is_given_as_device(target: cst.Attribute | cst.Name, context: Workspace) -> bool:
    """Whether the script gives what it keeps as `target` to a move, or as the device of something else."""
    return any(is_device_of(node, context) for node in context.mentions(target))


def is_device_of(node: cst.CSTNode, context: Workspace) -> bool:
    """Whether `node` is given to a move, or as the device of something else."""
    arg = context.parent(node)
    call = context.parent(arg)
    if not isinstance(arg, cst.Arg) or not isinstance(call, cst.Call):
        return False
    if arg.keyword is not None and arg.keyword.value == "device":
        return True
    return context.qualified_name(call.func) in DEVICE or context.values.is_move(call)


def is_text(value: cst.BaseExpression) -> bool:
    """Whether `value` makes a text of something: `str(x)`, f"{x}", "%d" % x."""
    if isinstance(value, cst.Call):
        return last_part(value.func) in ("str", "repr", "format", "join")
    if isinstance(value, cst.BinaryOperation):
        return isinstance(value.left, cst.BaseString)
    return isinstance(value, cst.FormattedString)


def used_as_string(target: cst.CSTNode, context: Workspace) -> bool:
    """Whether the script uses the stored device `target` as a string: compares it or takes it apart."""
    if not isinstance(target, cst.Attribute | cst.Name):
        return True
    above = (context.parent(node) for node in context.mentions(target))
    return any(
        isinstance(
            node, cst.BinaryOperation | cst.Comparison | cst.ComparisonTarget | cst.Subscript
        )
        or (isinstance(node, cst.Attribute) and node.attr.value in OF_STRINGS)
        for node in above
    )


def is_kept(value: cst.Name | cst.Attribute, context: Workspace) -> bool:
    """Whether `value` is assigned under the name of a device, so that the assignment is edited."""
    last = value.attr.value if isinstance(value, cst.Attribute) else value.value
    assigned = DEVICE_NAME.fullmatch(last) and context.values.given_to(value)
    return bool(assigned) and says_a_device(last) and not used_as_number(value, context)


def device_for(value: cst.BaseExpression, context: Workspace) -> cst.BaseExpression:
    """Return what takes the place of `value`, an expression for a CUDA device."""
    words = context.vocabulary
    wants_type = context.portable and _is_a_string(value, context)
    return words.device_type(like=value) if wants_type else words.device(value, like=value)


def _is_a_string(value: cst.BaseExpression, context: Workspace) -> bool:
    """Whether `value` stands where the script wants the name of a device, not the device."""
    for above in context.within_statement(value):
        if isinstance(above, cst.Call):
            named = context.qualified_name(above.func)
            if named is None and any(_taken_as_string(value, above, context)):
                return True
            return named in DEVICE or is_option(above) or (named is None and _is_str(above))
        if isinstance(above, cst.DictElement | cst.Return):
            return names_cuda(value)
        if isinstance(above, cst.Param):
            return used_as_string(above.name, context)
        if isinstance(above, cst.Assign):
            return any(used_as_string(target.target, context) for target in above.targets)
        if isinstance(above, cst.AnnAssign):
            return used_as_string(above.target, context)
    return False


def _taken_as_string(
    value: cst.BaseExpression, call: cst.Call, context: Workspace
) -> Iterator[bool]:
    """Yield, for each function that `call` runs, whether it takes its argument `value` for a string."""
    for function in context.called(call):
        names = {
            p.name.value: p.name for p in (*function.params.params, *function.params.kwonly_params)
        }
        names.pop("self", None)
        for name, arg in (bind(call, list(names)) or {}).items():
            if arg.value is value:
                yield used_as_string(names[name], context)


def _is_str(call: cst.Call) -> bool:
    return isinstance(call.func, cst.Name) and call.func.value == "str"


def to_port(value: cst.BaseExpression, context: Workspace) -> bool:
    """Whether `value` is the name of the XLA device, in a script that is to run elsewhere too."""
    return context.portable and string_value(value) == "xla"


def unpinned(context: Workspace) -> Callable[[cst.Call], cst.BaseExpression]:
    """Return the edit of `x.pin_memory()`: `x`, or in the portable style what pins it on CUDA only."""
    if not context.portable:
        return lambda call: cst.ensure_type(call.func, cst.Attribute).value
    function = cst.parse_expression(f"{context.imports.require('shims')}.pin_memory")

    def replace(updated: cst.Call) -> cst.Call:
        pinned = cst.ensure_type(updated.func, cst.Attribute).value
        return updated.with_changes(func=function, args=[cst.Arg(pinned)])

    return replace

"""Points where the host waits for a value of the device: `.item()`, `print(loss)`, `if loss > x`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue.words import (
    CONVERSIONS,
    LOG_FUNCTION,
    LOG_METHODS,
    LOGGER,
    METER_METHODS,
    NUMBERS,
    READ_METHODS,
    WRITES_TENSORS,
)
from migrate.model.calls.kind import Kind
from migrate.reading.values.device_values import DeviceValues
from migrate.reading.values.host import is_on_the_cpu
from migrate.reading.values.scalers import scale_read
from migrate.syntax.tree import keyword, nodes_of
from migrate.syntax.walk import children

if TYPE_CHECKING:
    from migrate.reading.script import Script

OF_TENSORS = frozenset(f"torch.Tensor.{name}" for name in READ_METHODS)
# The methods among these that NumPy arrays and lists do not have.
OF_TENSORS_ALONE = frozenset({"cpu", "numpy"})
# Methods of other libraries that read their arguments, with their libraries.
IN_LIBRARIES = {
    "add_result": frozenset(
        {"timm.data.RealLabelsImagenet", "timm.data.real_labels.RealLabelsImagenet"}
    ),
}
ON_THE_HOST = ("math.", "numpy.", "json.")


def is_log(call: cst.Call, context: Script) -> bool:
    """Whether `call` prints, logs, or feeds a meter or a progress bar."""
    func = call.func
    if isinstance(func, cst.Name):
        return func.value in ("print", "pprint") or bool(
            LOG_FUNCTION.fullmatch(func.value) and context.qualified_name(func) != "math.log"
        )
    if not isinstance(func, cst.Attribute):
        return False
    name = context.qualified_name(func) or ""
    if name.startswith(("torch.", "numpy.", "math.")):
        return False
    if LOG_METHODS.fullmatch(func.attr.value) and _is_logger(func.value, context):
        return True
    return func.attr.value in METER_METHODS and _named_logger(func.value)


def _is_logger(receiver: cst.BaseExpression, context: Script) -> bool:
    """Whether `receiver` is no tensor: `x.log()` is arithmetic, `wandb.log(…)` is not."""
    is_module = context.qualified_name(receiver) is not None
    return is_module or _named_logger(receiver) or isinstance(receiver, cst.Name | cst.Attribute)


def _named_logger(receiver: cst.BaseExpression) -> bool:
    names = [n.value for n in nodes_of(receiver, cst.Name) if n.value != "self"]
    return any(LOGGER.fullmatch(name) for name in names)


def in_text(node: cst.BinaryOperation) -> bool:
    """Whether `node` is `"…" % values`, or such a text joined with another one."""
    return isinstance(node.operator, cst.Modulo | cst.Add) and _is_text(node.left)


def _is_text(node: cst.BaseExpression) -> bool:
    """Whether `node` is a text, also repeated or concatenated: `("%f " * 2)`."""
    if isinstance(node, cst.BinaryOperation):
        return _is_text(node.left) or _is_text(node.right)
    return isinstance(node, cst.BaseString)


class DeviceReads:
    """Finder of the expressions that make the host wait for the device.

    Args:
        values: which names hold tensors of the device.
        context: the script.
    """

    def __init__(self, values: DeviceValues, context: Script) -> None:
        self._values = values
        self._context = context

    def inside(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Yield the expressions in `node` that read a value: the outermost of each read."""
        if self._reads(node):
            yield node
            return
        if isinstance(node, cst.FunctionDef | cst.ClassDef | cst.Lambda):
            return
        test = node.test if isinstance(node, cst.If | cst.While | cst.Assert | cst.IfExp) else None
        if test is not None and self._values.mentions(test):
            yield test
        for child in children(node):
            if child is not test or not self._values.mentions(test):
                yield from self.inside(child)

    def hidden(self, call: cst.Call) -> Iterator[cst.CSTNode]:
        """Yield the reads in the functions of the script that `call` runs."""
        for called in self._context.called(call):
            parameters = [p.name.value for p in called.params.params if p.name.value != "self"]
            inner = DeviceValues(called.body, parameters, self._context)
            yield from DeviceReads(inner, self._context)._certain(called.body)

    def _certain(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Yield the reads that happen with any arguments."""
        for call in self._context.below(node, cst.Call):
            if _is_method(call, READ_METHODS - {"cpu", "numpy"}):
                receiver = cst.ensure_type(call.func, cst.Attribute).value
                if self._context.values.kind(receiver) not in (Kind.HOST, Kind.CPU):
                    yield call
            elif self._is_float(call):
                yield call

    def _is_float(self, call: cst.Call) -> bool:
        """Whether `call` is `float(tensor)` and the tensor comes from a computation."""
        is_float = isinstance(call.func, cst.Name) and call.func.value == "float"
        return is_float and bool(call.args) and isinstance(call.args[0].value, cst.Call)

    def _reads(self, node: cst.CSTNode) -> bool:
        mentions = self._values.mentions
        if isinstance(node, cst.FormattedStringExpression):
            return mentions(node.expression)
        if isinstance(node, cst.BinaryOperation):
            return in_text(node) and mentions(node.right)
        return isinstance(node, cst.Call) and self._call_reads(node)

    def _call_reads(self, call: cst.Call) -> bool:
        if scale_read(call, self._context) is not None:
            return False  # a disabled scaler answers without the device
        name = self._context.qualified_name(call.func) or ""
        is_passed = any(self._values.mentions(arg.value) for arg in call.args)
        if isinstance(call.func, cst.Attribute):
            method = call.func.attr.value
            if method in READ_METHODS and not name:
                # A tensor of one value is the usual receiver of item(); lists and arrays have the other
                # methods.
                return (
                    method == "item"
                    or self._values.mentions(call.func.value)
                    or (method in OF_TENSORS_ALONE and self._is_unknown(call.func.value))
                )
            if method == "to" and not name and self._names_the_cpu(call):
                return self._values.mentions(call.func.value) or self._is_unknown(call.func.value)
            if (
                is_passed
                and method in IN_LIBRARIES
                and self._is_of(IN_LIBRARIES[method], call.func)
            ):
                return True
            if method == "format" and isinstance(call.func.value, cst.BaseString):
                return is_passed
        if isinstance(call.func, cst.Name) and call.func.value in CONVERSIONS:
            return is_passed and not name
        if name.startswith(ON_THE_HOST) or name in WRITES_TENSORS:
            return is_passed
        if is_passed and next(self.hidden(call), None) is not None:
            return True
        if is_passed and any(self._reads_each(arg.value) for arg in call.args):
            return True
        return is_passed and is_log(call, self._context) and not self._is_meter(call)

    def _is_unknown(self, value: cst.BaseExpression) -> bool:
        """Whether the device of the tensor `value` is unknown: it may be the accelerator."""
        of_host = is_on_the_cpu(value, self._context)
        return not of_host and self._context.values.kind(value) is Kind.UNKNOWN

    def _names_the_cpu(self, call: cst.Call) -> bool:
        """Whether `call` is `x.to("cpu", dtype=…)`."""
        place = keyword(call, "device") or (call.args[0] if call.args else None)
        return place is not None and self._context.values.is_surely_cpu(place.value)

    def _is_of(self, classes: frozenset[str], func: cst.Attribute) -> bool:
        """Whether `func` is a method of an object made by one of `classes`."""
        if not isinstance(func.value, cst.Name):
            return False
        values = self._context.bound_values(func.value)
        return any(
            isinstance(value, cst.Call) and self._context.qualified_name(value.func) in classes
            for value in values
        )

    def _reads_each(self, handed: cst.BaseExpression) -> bool:
        """Whether a function passed to another function reads its arguments.

        `apply(losses, lambda x: x.item())`, `map(float, losses)`, `tree_map(torch.Tensor.item, losses)`.
        """
        if isinstance(handed, cst.Lambda):
            names = {parameter.name.value for parameter in handed.params.params}
            return any(
                _is_method(call, READ_METHODS) and not names.isdisjoint(_names(call.func))
                for call in self._context.below(handed.body, cst.Call)
            ) or any(
                isinstance(call.func, cst.Name)
                and call.func.value in NUMBERS
                and any(not names.isdisjoint(_names(arg.value)) for arg in call.args)
                for call in self._context.below(handed.body, cst.Call)
            )
        if isinstance(handed, cst.Attribute):
            return (self._context.qualified_name(handed) or "") in OF_TENSORS
        if not isinstance(handed, cst.Name):
            return False
        if handed.value in NUMBERS and not self._context.bindings(handed):
            return True
        function = self._context.functions.get(handed.value)
        return function is not None and any(self._certain(function.body))

    def _is_meter(self, call: cst.Call) -> bool:
        """Whether `call` passes a tensor to a meter, which keeps it until it is printed."""
        return isinstance(call.func, cst.Attribute) and call.func.attr.value in METER_METHODS


def _names(node: cst.CSTNode) -> set[str]:
    return {name.value for name in nodes_of(node, cst.Name)}


def _is_method(call: cst.Call, names: frozenset[str]) -> bool:
    return isinstance(call.func, cst.Attribute) and call.func.attr.value in names

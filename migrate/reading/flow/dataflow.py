"""Names that a statement reads, binds and changes in place: whether two statements may be swapped."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import libcst as cst
from libcst.helpers import get_full_name_for_node

from migrate.catalogue.words import ACTS, NO_TENSORS, READS_FILES, SAVE
from migrate.syntax.tree import base_name, code, is_attribute_of_self, is_dotted_name, last_part
from migrate.syntax.walk import children

if TYPE_CHECKING:
    from migrate.reading.script import Script
    from migrate.reading.values.device_values import DeviceValues

# Methods that do not change their object; those of tensors need not be listed.
PURE = re.compile(
    "backward|copy|count|endswith|float|format|get|index|item|items|join|keys|lower|numel|parameters"
    "|named_parameters|size|split|startswith|state_dict|strip|upper|values"
)
# Calls whose result may be the same memory under another name.
VIEWS = re.compile(
    "chunk|contiguous|detach|double|expand|flatten|float|narrow|permute|reshape|select|split|squeeze"
    "|t|to|transpose|unbind|unsqueeze|view|view_as"
)


@dataclass
class Flow:
    """Effects of a piece of code on the names around it.

    Args:
        used: names that are read, dotted ones in full: `loss`, `self.model`.
        assigned: names that are bound anew.
        edited: names of objects changed in place: `losses` by `losses.update(…)`.
    """

    used: set[str] = field(default_factory=set)
    assigned: set[str] = field(default_factory=set)
    edited: set[str] = field(default_factory=set)

    @property
    def written(self) -> set[str]:
        """Names that are bound anew or changed in place."""
        return self.assigned | self.edited


def overlap(some: Iterable[str], others: Iterable[str]) -> set[str]:
    """Return those of `some` that equal one of `others`, are a part of one, or have one as a part."""
    others = set(others)
    return {
        flow
        for flow in some
        if any(
            flow == other or flow.startswith(f"{other}.") or other.startswith(f"{flow}.")
            for other in others
        )
    }


def flow(node: cst.CSTNode, values: DeviceValues, context: Script) -> Flow:
    """Return the effects of running `node` on the names around it.

    A method changes its object, unless the object is a tensor: only `x.mul_(…)` and `x += 1` change tensors.
    A function that the script only names is assumed not to change its arguments.
    """
    data_flow = Flow()
    _Collector(data_flow, values, context).collect(node)
    return data_flow


def meet_in_a_file(earlier: cst.CSTNode, later: cst.CSTNode, context: Script) -> bool:
    """Whether `later` may read from a file what `earlier` writes: `image.save(path)`, `open(path)`."""
    writes = [call for call in context.below(earlier, cst.Call) if _writes(call, context)]
    if not writes:
        return False
    paths = {code(arg.value) for call in writes for arg in call.args if _may_be_path(arg.value)}
    for call in context.below(later, cst.Call):
        if any(code(arg.value) in paths for arg in call.args):
            return True
        if _may_read(call, context):
            return True
    return False


def _may_read(call: cst.Call, context: Script) -> bool:
    """Whether `call` may read a file: by its name only where the source does not show what it runs.

    A function of the project reads if a call in its body does.
    """
    functions = context.run_by(call)
    if not functions:
        return READS_FILES.fullmatch(last_part(call.func)) is not None
    bodies = [function.body for function in context.called(call)]
    names = {last_part(inner.func) for body in bodies for inner in context.below(body, cst.Call)}
    names.update(name for function in functions for name in function.calls)
    return any(READS_FILES.fullmatch(name) for name in names)


def _writes(call: cst.Call, context: Script) -> bool:
    name = last_part(call.func)
    return name in ACTS or SAVE.fullmatch(name) is not None or context.effects.acts(call)


def _may_be_path(value: cst.BaseExpression) -> bool:
    if isinstance(value, cst.Name | cst.Attribute):
        return NO_TENSORS.search(last_part(value)) is not None
    return isinstance(
        value, cst.SimpleString | cst.FormattedString | cst.BinaryOperation | cst.Call
    )


def aliases(statements: Iterable[cst.CSTNode]) -> list[tuple[str, str]]:
    """Return the pairs of names that `statements` bind to one memory: `a = b`, `a = b.detach()[0]`."""
    pairs: list[tuple[str, str]] = []
    stack = list(statements)
    while stack:
        node = stack.pop()
        stack.extend(children(node))
        if isinstance(node, cst.Assign) and is_view(node.value):
            original = base_name(node.value)
            names = [get_full_name_for_node(target.target) for target in node.targets]
            pairs.extend((name, original) for name in names if name and original)
    return pairs


def is_view(value: cst.BaseExpression) -> bool:
    """Whether `value` names an existing tensor, or is a view of one: `x[0].view(-1)`."""
    while not isinstance(value, cst.Name):
        if isinstance(value, cst.Call):
            if not isinstance(value.func, cst.Attribute) or not VIEWS.fullmatch(
                value.func.attr.value
            ):
                return False
            value = value.func.value
        elif isinstance(value, cst.Attribute | cst.Subscript):
            value = value.value
        else:
            return False
    return True


class _Collector:
    def __init__(self, flow: Flow, values: DeviceValues, context: Script) -> None:
        self._found = flow
        self._values = values
        self._context = context

    def collect(self, node: cst.CSTNode) -> None:
        if isinstance(node, cst.Name | cst.Attribute):
            if is_dotted_name(node):
                self._found.used.add(str(get_full_name_for_node(node)))
            elif isinstance(node, cst.Attribute):
                self.collect(node.value)
        elif isinstance(node, cst.Arg):
            self.collect(node.value)  # not the keyword
        elif isinstance(node, cst.Param):
            if node.default is not None:
                self.collect(node.default)
        elif isinstance(node, cst.AugAssign):
            self._augment(node)
        elif isinstance(node, cst.AssignTarget | cst.NamedExpr | cst.For | cst.AnnAssign):
            self._bind(node.target)
            for child in children(node):
                if child is not node.target:
                    self.collect(child)
        elif isinstance(node, cst.AsName):
            self._bind(node.name)
        elif isinstance(node, cst.Del):
            self._bind(node.target)
        elif isinstance(node, cst.ImportAlias):
            name = node.evaluated_alias or node.evaluated_name.split(".")[0]
            self._found.assigned.add(name)
        else:
            if isinstance(node, cst.FunctionDef | cst.ClassDef):
                self._found.assigned.add(node.name.value)
            skipped: cst.CSTNode | None = None
            if isinstance(node, cst.FunctionDef | cst.ClassDef):
                skipped = node.name
            if isinstance(node, cst.Call):
                self._edit(node)
                if isinstance(node.func, cst.Attribute) and not is_attribute_of_self(node.func):
                    self.collect(node.func.value)  # the object of the method
                    skipped = node.func
            for child in children(node):
                if child is not skipped:
                    self.collect(child)

    def _augment(self, node: cst.AugAssign) -> None:
        self._bind(node.target)
        self.collect(node.target)
        self.collect(node.value)
        name = base_name(node.target)
        if name and self._values.mentions(node.target):
            self._found.edited.add(name)  # `loss /= 4` writes to the tensor that others hold

    def _bind(self, target: cst.BaseExpression) -> None:
        if isinstance(target, cst.Tuple | cst.List):
            for element in target.elements:
                self._bind(element.value)
        elif is_dotted_name(target):
            self._found.assigned.add(str(get_full_name_for_node(target)))
        else:
            name = base_name(target)
            if name:
                self._found.edited.add(name)
            for child in children(target):
                self.collect(child)

    def _edit(self, call: cst.Call) -> None:
        if not isinstance(call.func, cst.Attribute) or self._context.qualified_name(call.func):
            return
        method = call.func.attr.value
        in_place = method.endswith("_") and not method.startswith("_")
        a_tensor = self._values.mentions(call.func.value)
        name = base_name(call.func.value)
        if name and (in_place or not (a_tensor or PURE.fullmatch(method))):
            self._found.edited.add(name)

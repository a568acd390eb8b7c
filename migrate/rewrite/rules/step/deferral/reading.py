"""A value that every step reads and only adds to something: its read and its accumulator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import libcst as cst

from migrate.reading.flow.dataflow import flow
from migrate.reading.flow.reads import is_log
from migrate.reading.values.device_values import DeviceValues
from migrate.syntax.tree import nodes, nodes_of
from migrate.syntax.walk import children

if TYPE_CHECKING:
    from migrate.rewrite.workspace import Workspace

TAKES = frozenset({"add", "append", "update"})


@dataclass
class Reading:
    """A value that is read in every step, and the statements that take it.

    Args:
        read: the expression of the script that reads the value: `loss.item()`.
        tensor: the tensor that is read.
        line: the statement that reads.
        variable: the variable that the statement gives the value to, where it does no more.
        takes: the statements that use the value in every step, in order; `line` too, where it does.
        sums: the names of what they add to.
        objects: those of them that are objects: lists, meters.
        fresh: the names that are bound to the value, or to what is computed from it.
        flushes: the `if`s whose bodies observe any of them.
        seen_after: whether code after the loop observes it.
        kept: values of the step that they use beside it: `images.size(0)`.
    """

    read: cst.BaseExpression
    tensor: cst.BaseExpression
    line: cst.SimpleStatementLine
    variable: str | None = None
    takes: list[cst.SimpleStatementLine] = field(default_factory=list)
    sums: set[str] = field(default_factory=set)
    objects: set[str] = field(default_factory=set)
    fresh: set[str] = field(default_factory=set)
    flushes: list[cst.If] = field(default_factory=list)
    seen_after: bool = True
    kept: list[cst.BaseExpression] = field(default_factory=list)

    @property
    def watched(self) -> set[str]:
        """The names that hold the value, or something that it is added to."""
        return self.sums | self.fresh

    @property
    def lines(self) -> list[cst.SimpleStatementLine]:
        """The statements that do not stay as they are."""
        return [self.line, *(line for line in self.takes if line is not self.line)]

    def take(self, line: cst.SimpleStatementLine) -> bool:
        """Take note that `line` uses the value; False where it does more than bind or add it."""
        statement = line.body[0] if len(line.body) == 1 else None
        if isinstance(statement, cst.AugAssign) and isinstance(statement.target, cst.Name):
            self.sums.add(statement.target.value)
        elif isinstance(statement, cst.Assign) and len(statement.targets) == 1:
            target = statement.targets[0].target
            if not isinstance(target, cst.Name):
                return False
            again = any(name.value == target.value for name in self._names(statement.value))
            (self.sums if again else self.fresh).add(target.value)
        elif isinstance(statement, cst.Expr) and isinstance(statement.value, cst.Call):
            name = _taker(statement.value)
            if name is None:
                return False
            self.sums.add(name)
            self.objects.add(name)
        else:
            return False
        self.takes.append(line)
        return True

    def _names(self, value: cst.CSTNode) -> Iterator[cst.Name]:
        """Yield the names in `value`, those of the read itself left out."""
        gone = {id(node) for node in nodes(self.read)}
        return (name for name in nodes_of(value, cst.Name) if id(name) not in gone)


def _taker(call: cst.Call) -> str | None:
    """Return the variable whose method takes the value: `losses.update(…)`, `history["a"].append(…)`."""
    if not isinstance(call.func, cst.Attribute) or call.func.attr.value not in TAKES:
        return None
    receiver = call.func.value
    while isinstance(receiver, cst.Subscript):
        receiver = receiver.value
    return receiver.value if isinstance(receiver, cst.Name) else None


def as_reading(line: cst.SimpleStatementLine, site: cst.CSTNode) -> Reading | None:
    """Return the reading that `line` is, `site` being where it waits, or None if it is none."""
    tensor = _tensor(site)
    if tensor is None or len(line.body) != 1:
        return None
    assert isinstance(site, cst.Call)
    is_item = isinstance(site.func, cst.Attribute)
    # `float(tensor)` stays a conversion, of the value.
    reading = Reading(site if is_item else site.args[0].value, tensor, line)
    statement = line.body[0]
    if isinstance(statement, cst.Assign) and statement.value is site and is_item:
        target = statement.targets[0].target
        if len(statement.targets) == 1 and isinstance(target, cst.Name):
            reading.variable = target.value
            reading.fresh.add(target.value)
            return reading
    return reading if reading.take(line) else None


def _tensor(site: cst.CSTNode) -> cst.BaseExpression | None:
    """Return the tensor that `tensor.item()` or `float(tensor)` reads."""
    if not isinstance(site, cst.Call):
        return None
    if isinstance(site.func, cst.Name):
        only = site.args[0] if len(site.args) == 1 else None
        plain = site.func.value == "float" and only is not None and not only.star
        return _on_the_device(only.value) if plain and only is not None else None
    if not isinstance(site.func, cst.Attribute) or site.func.attr.value != "item" or site.args:
        return None
    return _on_the_device(site.func.value)


def _on_the_device(tensor: cst.BaseExpression) -> cst.BaseExpression:
    """Return `loss` of `loss.detach().cpu()` and of `loss.data`: what holds the value on the device."""
    while True:
        if isinstance(tensor, cst.Attribute) and tensor.attr.value == "data":
            tensor = tensor.value
        elif (
            isinstance(tensor, cst.Call)
            and isinstance(tensor.func, cst.Attribute)
            and tensor.func.attr.value in ("cpu", "detach")
            and not tensor.args
        ):
            tensor = tensor.func.value
        else:
            return tensor


def why_it_stays(line: cst.CSTNode, sites: Sequence[cst.CSTNode], context: Workspace) -> str:
    """Return why what `line` reads is read in every step."""
    if any(is_log(call, context) for call in context.below(line, cst.Call)):
        return "is shown in every step"
    if len(sites) > 1:
        return "reads several values in one statement"
    return "does something else with the value than add it up"


def kept_values(
    reading: Reading, varying: set[str], values: DeviceValues, context: Workspace
) -> list[cst.BaseExpression] | None:
    """Return what the statements of `reading` use of the step beside the value, or None if no number."""
    expressions: list[cst.BaseExpression] = []
    for line in reading.takes:
        stack: list[cst.CSTNode] = [line.body[0]]
        while stack:
            node = stack.pop()
            if node is reading.read or isinstance(node, cst.AssignTarget):
                continue
            if not isinstance(node, cst.BaseExpression):
                stack.extend(reversed(children(node)))
                continue
            used = flow(node, values, context).used
            bases = {name.split(".")[0] for name in used}
            if not bases & {name.split(".")[0] for name in varying - reading.watched}:
                continue
            holds = bases & reading.watched or any(n is reading.read for n in nodes(node))
            if holds:
                stack.extend(reversed(children(node)))
            elif _is_number(node, context):
                expressions.append(node)
            else:
                return None
    return expressions


def _is_number(node: cst.BaseExpression | None, context: Workspace, depth: int = 3) -> bool:
    """Whether `node` is a number that the host has: a size, a length, a counter."""
    if isinstance(node, cst.BaseNumber):
        return True
    if isinstance(node, cst.BinaryOperation):
        return _is_number(node.left, context, depth) and _is_number(node.right, context, depth)
    if isinstance(node, cst.Call):
        last = node.func.attr if isinstance(node.func, cst.Attribute) else node.func
        return isinstance(last, cst.Name) and last.value in ("dim", "len", "numel", "size")
    if isinstance(node, cst.Subscript):
        return isinstance(node.value, cst.Attribute) and node.value.attr.value == "shape"
    if isinstance(node, cst.Name) and depth:
        bound = context.bound_values(node)
        return bool(bound) and all(
            isinstance(value, cst.BaseExpression) and _is_number(value, context, depth - 1)
            for value in bound
        )
    return False

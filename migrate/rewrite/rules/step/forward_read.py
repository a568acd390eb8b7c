"""`total += loss_fn(model(x), y).item()`: a read of what the same statement computes with a model."""

from __future__ import annotations

import re
from collections.abc import Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from migrate.reading.flow.dataflow import is_view
from migrate.rewrite.rules.step.detached_read import TensorRead
from migrate.syntax.tree import code, nodes

if TYPE_CHECKING:
    from migrate.rewrite.workspace import Workspace

# Functions that compute a loss, by the last part of their name.
LOSS = re.compile(r"(?i)(.*(loss|criterion|entropy)|crit)(_fn|_fun|_func|_function)?")
REDUCES = frozenset({"mean", "sum", "detach", "float", "double"})
# What a sum over batches has in its name beside that of its value.
_OF_A_SUM = re.compile(r"^(total|running|sum|epoch|num|n|all)_|_(total|sum|acc)$")
TAKES = frozenset({"add", "append", "update"})


@dataclass(frozen=True)
class ForwardRead(TensorRead):
    """A statement that computes a tensor, reads it and adds it to something.

    The computation becomes a statement of the step, `loss = loss_fn(model(x), y)`, and the read a statement
    below it, `total += loss.item()`.

    Args:
        line: the statement.
    """

    line: cst.SimpleStatementLine

    @property
    def edited(self) -> cst.CSTNode:
        """The statement that stays in the step."""
        return self.line

    def kept(self, updated: cst.CSTNode) -> cst.BaseStatement:
        """Return the statement of the step: the tensor gets a name."""
        line = cst.ensure_type(updated, cst.SimpleStatementLine)
        call = _read_in(line)
        assert call is not None
        assert isinstance(call.func, cst.Attribute)
        assign = cst.Assign([cst.AssignTarget(cst.Name(self.name))], call.func.value)
        return line.with_changes(body=[assign], trailing_whitespace=line.trailing_whitespace)

    @property
    def below(self) -> str:
        """The statement below the block."""
        read = cst.Call(cst.Attribute(cst.Name(self.name), cst.Name("item")))
        return code(self.line.body[0].deep_replace(self.call, read))


def as_forward_read(
    node: cst.CSTNode, context: Workspace, taken: Set[str] = frozenset()
) -> ForwardRead | None:
    """Return the read that a statement with a forward is, or None for any other statement.

    Args:
        node: the statement.
        context: the script.
        taken: names that other statements of the same block get.
    """
    if not isinstance(node, cst.SimpleStatementLine) or len(node.body) != 1:
        return None
    call = _read_in(node)
    if call is None:
        return None
    assert isinstance(call.func, cst.Attribute)
    if is_view(call.func.value):
        return None
    name = _name(node, call.func.value, context, taken)
    return None if name is None else ForwardRead(call, name, node)


def _read_in(line: cst.SimpleStatementLine) -> cst.Call | None:
    """Return the only `.item()` of `total += tensor.item()` or `losses.append(tensor.item())`."""
    statement = line.body[0]
    if isinstance(statement, cst.AugAssign) and isinstance(statement.target, cst.Name):
        value: cst.BaseExpression = statement.value
        others: list[cst.BaseExpression] = []
    elif (
        isinstance(statement, cst.Expr)
        and isinstance(statement.value, cst.Call)
        and isinstance(statement.value.func, cst.Attribute)
        and statement.value.func.attr.value in TAKES
        and statement.value.args
    ):
        value = statement.value.args[0].value
        others = [arg.value for arg in statement.value.args[1:]]
        if not isinstance(statement.value.func.value, cst.Name):
            return None
    else:
        return None
    if isinstance(value, cst.BinaryOperation):  # `loss_fn(model(x), y).item() * x.size(0)`
        others.append(value.right)
        value = value.left
    plain = all(_is_size(other) for other in others)
    return value if plain and isinstance(value, cst.Call) and _is_item(value) else None


def _is_item(call: cst.Call) -> bool:
    return isinstance(call.func, cst.Attribute) and call.func.attr.value == "item" and not call.args


def _is_size(value: cst.BaseExpression) -> bool:
    """Whether `value` is a number of the host that the step does not change: `x.size(0)`, `len(x)`."""
    if isinstance(value, cst.Name | cst.BaseNumber):
        return True
    if isinstance(value, cst.Subscript):
        return isinstance(value.value, cst.Attribute) and value.value.attr.value == "shape"
    if not isinstance(value, cst.Call):
        return False
    return code(value.func).rpartition(".")[2] in ("len", "size", "numel")


def _name(
    line: cst.SimpleStatementLine, tensor: cst.BaseExpression, context: Workspace, taken: Set[str]
) -> str | None:
    """Return a free name for `tensor`: `loss` for a loss, else `batch_correct` for what `correct` adds up."""
    names = ["loss", "batch_loss"] if _is_loss(tensor) else []
    statement = line.body[0]
    if isinstance(statement, cst.AugAssign):
        names.append(f"batch_{_OF_A_SUM.sub('', code(statement.target))}")
        names.append(f"batch_{code(statement.target)}")
    names.append("batch_value")
    function = context.function_around(line)
    places = [function] if function is not None else [context.module]
    mentioned = {name.value for place in places for name in context.below(place, cst.Name)}
    outside = {name for name in names if _is_of_module(name, context)}
    return next((n for n in names if n not in mentioned | outside | set(taken)), None)


def _is_of_module(name: str, context: Workspace) -> bool:
    """Whether a module, function or variable of the script's top level has the name."""
    mentions = context.references(name)
    return any(context.function_around(mention) is None for mention in mentions)


def _is_loss(tensor: cst.BaseExpression) -> bool:
    while (
        isinstance(tensor, cst.Call)
        and isinstance(tensor.func, cst.Attribute)
        and tensor.func.attr.value in REDUCES
        and any(isinstance(node, cst.Call) for node in nodes(tensor.func.value))
    ):
        tensor = tensor.func.value
    if not isinstance(tensor, cst.Call):
        return False
    return LOSS.fullmatch(code(tensor.func).rpartition(".")[2]) is not None

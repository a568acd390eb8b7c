"""Saves of each replica's own files: their values move to the CPU, and `torch.save` stays.

`xm.save` lets all replicas wait for each other. Where each goes over a share of the work, one of them may
save fewer files than another, and the others would wait for ever.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from migrate.check.hazard import Severity
from migrate.model.calls.kind import TENSORS, Kind
from migrate.model.replicated.shares import Share
from migrate.reading.values.host import is_on_the_cpu, items_put
from migrate.reading.values.saved import arguments
from migrate.rewrite.rule import Edit, Rule, RuleFinding
from migrate.syntax.origins import at_line
from migrate.syntax.tree import code, last_part, string_value

if TYPE_CHECKING:
    from migrate.rewrite.workspace import Workspace

# Methods and functions whose result holds tensors and is none.
HOLDERS = frozenset({"dict", "items", "list", "named_parameters", "state_dict", "tuple", "values"})
# Annotations of what holds tensors and is none.
CONTAINER = re.compile(
    r"(\w+\.)*([Dd]ict|(Mutable)?Mapping|[Ll]ist|[Tt]uple|Sequence|Iterable)\b", re.ASCII
)


def share_of(call: cst.Call, context: Workspace) -> Share | None:
    """Return why the save `call` writes other files on each replica, or None for other saves."""
    share = context.effects.divides(call)
    if share is not None and share.by_error:
        return share
    guard = context.guards.around(call)
    if guard is None:
        return share
    if isinstance(guard, cst.If) and _gives_turns(guard.test, context):
        line = context.position(guard).line
        return Share(code(guard.test), line, context.file, by_loop=True)
    return None  # one replica writes, or a group


def _gives_turns(test: cst.BaseExpression, context: Workspace) -> bool:
    """Whether `test` lets each replica pass in some turns: `i % world_size == rank`."""
    for comparison in context.below(test, cst.Comparison):
        sides = [comparison.left, *(target.comparator for target in comparison.comparisons)]
        for side in sides:
            others = [other for other in sides if other is not side]
            if context.guards.is_index(side) and any(map(_changes, others)):
                return True
            if not isinstance(side, cst.BinaryOperation) or not _changes(side):
                continue
            summed = side.left
            if isinstance(summed, cst.BinaryOperation) and any(
                context.guards.is_index(part) for part in (summed.left, summed.right)
            ):
                return True
    return False


def _changes(value: cst.BaseExpression) -> bool:
    """Whether `value` is the remainder of a number, or an entry of a list: another one in each turn."""
    if isinstance(value, cst.Subscript):
        return True
    if not isinstance(value, cst.BinaryOperation):
        return False
    return isinstance(value.operator, cst.Modulo | cst.FloorDivide)


def own_files(
    rule: Rule, call: cst.Call, share: Share, context: Workspace
) -> Iterator[Edit | RuleFinding]:
    """Yield the edits that put on the CPU what `call` saves, or the finding.

    Args:
        rule: the rule that makes the edits.
        call: a call of torch.save, in a loop over the replica's share.
        share: what divides the files.
        context: the script.
    """
    saved = (arguments(call, context) or {}).get("obj")
    is_here = share.path == context.file
    place = f"`{share.text}` ({at_line(share.line, None if is_here else share.path)})"
    divided = f"each replica saves files of its own: {place} divides them"
    if share.by_error:
        divided = f"{place} may run in one replica alone, which saves for itself"
    tensors = _tensors(saved.value, context) if saved is not None else None
    if tensors is None:
        what = f"`{code(saved.value)}`" if saved is not None else "what is saved"
        yield from rule.report(
            call,
            f"{divided}; {last_part(call.func)} stays, so that no file is lost: see that {what} is on the "
            "CPU first (`x.cpu()`), as a tensor of the device loads elsewhere only with map_location",
            Severity.INFO,
        )
        return
    for tensor in tensors:
        yield rule.edit(tensor, _on_the_cpu, f"{divided}; the tensor moves to the CPU")


def _tensors(value: cst.BaseExpression, context: Workspace) -> list[cst.BaseExpression] | None:
    """Return the tensors in `value` that are to move, or None if it is not seen what all its parts are."""
    if isinstance(value, cst.Dict | cst.List | cst.Tuple):
        expressions: list[cst.BaseExpression] = []
        for element in value.elements:
            if isinstance(element, cst.StarredDictElement | cst.StarredElement):
                return None
            parts = _tensors(element.value, context)
            if parts is None:
                return None
            expressions += parts
        return expressions
    if isinstance(value, cst.SimpleString | cst.FormattedString) or is_on_the_cpu(value, context):
        return []
    kind = context.values.kind(value)
    if kind is Kind.HOST and isinstance(value, cst.Name):
        inside = context.function_around(value) or context.module
        on_host = (_tensors(item, context) == [] for item in items_put(value.value, inside))
        return [] if all(on_host) else None
    if kind is Kind.HOST:
        return []
    return [value] if kind in TENSORS and _is_one_tensor(value, context) else None


def _is_one_tensor(value: cst.BaseExpression, context: Workspace, depth: int = 4) -> bool:
    """Whether `value`, of tensors, is a single one, and no dict or tuple that holds some."""
    if isinstance(value, cst.Dict | cst.List | cst.Tuple | cst.BaseComp):
        return False
    if isinstance(value, cst.Name):
        if _holds_items(value, context):
            return False
        bound = context.bound_values(value) if depth else []
        followed = (value for value in bound if isinstance(value, cst.BaseExpression))
        # Each of its values: `state = {"x": x}` in a loop and below it again.
        return all(
            isinstance(value, cst.Name) or _is_one_tensor(value, context, depth - 1)
            for value in followed
        )
    if not isinstance(value, cst.Call):
        return True
    if last_part(value.func) in HOLDERS:
        return False
    returned = [
        statement.value
        for function in (context.called(value) if depth else ())
        for statement in context.below(function.body, cst.Return)
    ]
    return all(
        expression is not None and _is_one_tensor(expression, context, depth - 1)
        for expression in returned
    )


def _holds_items(name: cst.Name, context: Workspace) -> bool:
    """Whether the function around says that `name` is a container: `batch: dict`, or `batch["x"]`."""
    function = context.function_around(name)
    for param in context.below(function.params, cst.Param) if function is not None else ():
        if param.name.value == name.value and param.annotation is not None:
            annotation = code(param.annotation.annotation).strip("'\"")
            if CONTAINER.match(annotation):
                return True
    inside = context.module if function is None else function.body
    return any(
        isinstance(item.value, cst.Name)
        and item.value.value == name.value
        and any(
            isinstance(element.slice, cst.Index) and string_value(element.slice.value) is not None
            for element in item.slice
        )
        for item in context.below(inside, cst.Subscript)
    )


def _on_the_cpu(value: cst.BaseExpression) -> cst.BaseExpression:
    return cst.Call(cst.Attribute(value, cst.Name("cpu")))

"""Sums that make a global rank of a node's number and the index of a process on it."""

from __future__ import annotations

import re

import libcst as cst

from migrate.catalogue.words import HOST_NAME
from migrate.reading.replicas.launch import INIT
from migrate.rewrite.rules.ranks.object_fields import kept_on
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import keyword, last_part

DEVICES = re.compile(r"gpu|nproc|num_proc|device|per_node|local_size|local_world_size")


def added_index(
    node: cst.BinaryOperation, context: Workspace
) -> tuple[cst.BaseExpression, bool] | None:
    """Return the worker's index in `A * n + index`, and whether the sum is certainly the rank."""
    if not isinstance(node.operator, cst.Add):
        return None
    for index, other in ((node.left, node.right), (node.right, node.left)):
        if not isinstance(other, cst.BinaryOperation) or not isinstance(
            other.operator, cst.Multiply
        ):
            continue
        if not is_index(index, context):
            continue
        if _is_the_rank(node, context):
            return index, True
        names = (_last_word(other.left), _last_word(other.right))
        for left, right in (names, names[::-1]):
            if DEVICES.search(right) and left:
                return index, HOST_NAME.search(left) is not None
    return None


def _is_the_rank(node: cst.BinaryOperation, context: Workspace) -> bool:
    """Whether the process joins its group with the value of `node` as its rank."""
    joins = [call for call in context.all_of(cst.Call) if context.qualified_name(call.func) in INIT]
    expressions = [arg.value for call in joins if (arg := keyword(call, "rank")) is not None]
    statement = context.parent(node)
    targets: list[cst.CSTNode] = [node]
    if isinstance(statement, cst.Assign) and statement.value is node:
        targets += [assign_target.target for assign_target in statement.targets]
    worker = context.function_around(node)
    return any(
        value.deep_equals(target) and context.function_around(value) is worker
        for value in expressions
        for target in targets
    )


def is_rank_increment(node: cst.AugAssign, context: Workspace) -> bool:
    """Whether `node` is `args.rank += index`, in a worker."""
    adds = isinstance(node.operator, cst.AddAssign)
    return adds and _last_word(node.target).endswith("rank") and is_index(node.value, context)


def _last_word(node: cst.BaseExpression) -> str:
    place = kept_on(node)
    return (last_part(node) if place is None else place.word).lower()


def is_index(node: cst.BaseExpression, context: Workspace) -> bool:
    """Whether `node` is the index that a launched worker receives: its first parameter, unassigned.

    Also a place that holds it, as `args.gpu` after `args.gpu = gpu`.
    """
    worker = context.function_around(node)
    if worker is None or not any(worker is launched for launched in context.launch.workers()):
        return False
    first = worker.params.params[0].name.value if worker.params.params else None
    if isinstance(node, cst.Name):
        owner, value = context.bound_to(node)
        return node.value == first and owner is worker and isinstance(value, cst.Param)
    if not isinstance(node, cst.Attribute | cst.Subscript):
        return False
    assigned = [
        assign.value
        for assign in context.all_of(cst.Assign)
        if assign.targets[0].target.deep_equals(node)
    ]
    return (
        len(assigned) == 1 and isinstance(assigned[0], cst.Name) and is_index(assigned[0], context)
    )

"""Launches with a branch for one device: `if n_gpus > 1: mp.spawn(worker, …)`, `else: worker(0, …)`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue.launchers import SPAWN, SPAWN_PARAMETERS
from migrate.syntax.tree import bind, code, elements

if TYPE_CHECKING:
    from migrate.reading.names.parsed import Parsed

MORE_THAN_ONE = {("1", cst.GreaterThan), ("2", cst.GreaterThanEqual), ("1", cst.NotEqual)}


def one_device(call: cst.Call, context: Parsed) -> tuple[cst.If, cst.Call] | None:
    """Return the `if` around the launch `call`, and the call of the worker in its `else`.

    The `if` asks whether there is more than one process to start, and holds nothing but these two calls.
    """
    if context.qualified_name(call.func) not in SPAWN:
        return None
    bound = bind(call, SPAWN_PARAMETERS)
    node = context.parent(context.parent(context.statement_around(call)))
    if bound is None or not {"fn", "nprocs"} <= bound.keys() or not isinstance(node, cst.If):
        return None
    instead = _only_call(node.orelse.body) if isinstance(node.orelse, cst.Else) else None
    if _only_call(node.body) is not call or instead is None:
        return None
    asked = _meant(node, context)
    if asked is None or not _asks_for_more(asked, bound["nprocs"].value, context):
        return None
    passed = [element.value for element in elements(bound["args"])] if "args" in bound else []
    alternatives = [arg.value for arg in instead.args]
    same = (
        code(instead.func) == code(bound["fn"].value)
        and not any(arg.keyword or arg.star for arg in instead.args)
        and len(alternatives) == len(passed) + 1
        and isinstance(alternatives[0], cst.Integer)
        and all(
            first.deep_equals(other) for first, other in zip(alternatives[1:], passed, strict=True)
        )
    )
    return (node, instead) if same else None


def _only_call(body: cst.BaseSuite) -> cst.Call | None:
    """Return the call if `body` consists of it alone."""
    if not isinstance(body, cst.IndentedBlock) or len(body.body) != 1:
        return None
    line = body.body[0]
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
        return None
    small = line.body[0]
    value = small.value if isinstance(small, cst.Expr) else None
    return value if isinstance(value, cst.Call) else None


def _meant(node: cst.If, context: Parsed) -> cst.BaseExpression | None:
    """Return the comparison behind `node`: in place, or the value of `args.distributed` assigned above.

    None if something else may have set the attribute.
    """
    if isinstance(node.test, cst.Comparison):
        return node.test
    value = _only_value(node.test, context)
    inside = value is not None and context.function_around(value) is context.function_around(node)
    return value if inside else None


def _only_value(place: cst.BaseExpression, context: Parsed) -> cst.BaseExpression | None:
    """Return the value of a variable or an attribute that only one statement assigns."""
    values = [
        assign.value
        for assign in context.all_of(cst.Assign)
        if any(target.target.deep_equals(place) for target in assign.targets)
    ]
    if not isinstance(place, cst.Name | cst.Attribute) or len(values) != 1:
        return None
    return values[0]


def _asks_for_more(test: cst.BaseExpression, count: cst.BaseExpression, context: Parsed) -> bool:
    """Whether `test` asks for more than one of `count`, or of a product with it: the count of all hosts."""
    if not isinstance(test, cst.Comparison) or len(test.comparisons) != 1:
        return False
    asked = test.comparisons[0]
    if not any(
        code(asked.comparator) == number and isinstance(asked.operator, operator)
        for number, operator in MORE_THAN_ONE
    ):
        return False
    left = test.left
    if not left.deep_equals(count) and isinstance(left, cst.Name | cst.Attribute):
        left = _only_value(left, context) or left
    while isinstance(left, cst.BinaryOperation) and isinstance(left.operator, cst.Multiply):
        if left.right.deep_equals(count):
            return True
        left = left.left
    return left.deep_equals(count)

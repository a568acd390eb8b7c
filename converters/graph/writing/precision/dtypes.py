"""The dtype that a model computes in, in the source: `x.dtype` of a value that has it.

The recording has `ir.COMPUTE` for it. What a lowering writes with that dtype gets a hole. The method or
function that it stands in fills the hole with the dtype of an argument, else of a value that it computes,
else with an argument that it is given for this alone.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch

from converters.graph.expression import Hole, code, dtype_name
from converters.graph.ir import COMPUTE, Fact, Graph, Held, Op, calls, held
from converters.graph.writing.holes import fill, holes
from converters.graph.writing.statements import Statement

# The argument that a method or function is given where none of its tensors shows the dtype.
ARGUMENT = "dtype"
_LIMITS = {torch.finfo(COMPUTE).max: "max", torch.finfo(COMPUTE).min: "min"}
_CASTS = (
    "aten.to.dtype",
    "aten._to_copy.default",
    "aten.to.dtype_layout",
    "aten.to.device",
    "aten.to.other",
    "aten.type_as.default",
)


@dataclass(frozen=True)
class ComputeDtype:
    """The dtype that the model computes in: what a hole stands for."""


def marked(value: ast.expr) -> ast.expr:
    """A lowering's expression, with holes for the dtype that the model computes in, and for its
    limits.
    """
    holed: ast.expr = _Marked().visit(value)
    return holed


class _Marked(ast.NodeTransformer):
    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if isinstance(node.value, ast.Name) and f"{node.value.id}.{node.attr}" == _SPELLED:
            return Hole(ComputeDtype())
        self.generic_visit(node)
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        inner = node.operand
        if (
            isinstance(node.op, ast.USub)
            and isinstance(inner, ast.Attribute)
            and inner.attr == "max"
            and any(map(_is_hole, holes(inner)))
        ):
            return _limit("min")
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        name = _LIMITS.get(node.value) if isinstance(node.value, float) else None
        return node if name is None else _limit(name)


_SPELLED = dtype_name(COMPUTE)


def _limit(name: str) -> ast.expr:
    return code(f"jnp.finfo({{d}}).{name}", d=Hole(ComputeDtype()))


def _is_hole(hole: Hole) -> bool:
    return isinstance(hole.value, ComputeDtype)


def needs(value: ast.AST) -> bool:
    """Whether a tree has a hole for the dtype."""
    return any(map(_is_hole, holes(value)))


def filled(value: Any, dtype: ast.expr) -> Any:
    """A tree with the dtype where it has holes for it."""
    return fill(value, lambda hole: dtype if _is_hole(hole) else hole)


def shown_by(
    statements: Sequence[Statement], facts: Mapping[int, Fact], maybe: Set[int] = frozenset()
) -> int | None:
    """A tensor that has the dtype, and that is computed before the first statement which needs it."""
    for statement in statements:
        if needs(statement.value):
            return None
        for out in statement.outs:
            if out >= 0 and facts[out].dtype == COMPUTE and out not in maybe:
                return out
    return None


def read_from(
    body: Sequence[ast.stmt], argument: str, taken: Collection[str], original: ast.AST
) -> list[ast.stmt]:
    """Statements with their holes filled by the dtype of an argument.

    Where the argument's name stands for something else later, the dtype gets a name of its own first.
    """
    stored = {
        node.id
        for statement in body
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    if argument not in stored:
        return [filled(statement, code(f"{argument}.dtype")) for statement in body]
    name = _original_name(original, argument)
    while name in {*taken, *stored}:
        name += "_"
    first = ast.Assign([ast.Name(name, ast.Store())], code(f"{argument}.dtype"))
    return [first, *(filled(statement, code(name)) for statement in body)]


def _original_name(original: ast.AST, argument: str) -> str:
    """The original's name of the dtype of an argument: `input_dtype = hidden_states.dtype`."""
    for node in ast.walk(original):
        match node:
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.Attribute(value=ast.Name(id=owner), attr="dtype"),
            ) if owner == argument:
                return name
    return ARGUMENT


def cast_only(graph: Graph) -> frozenset[str]:
    """The parameters and buffers that are only read in another dtype (`self.A_log.float()`)."""
    wide: set[str] = set()
    other: set[str] = set()
    for module_call in calls(graph.root):
        other |= {
            argument.value.key
            for argument in module_call.arguments
            if isinstance(argument.value, Held)
        }
        for item in module_call.body:
            if isinstance(item, Op):
                keys = {value.key for value in held((item.arguments, item.named))}
                cast = item.target in _CASTS and graph.facts[item.outs[0]].dtype != COMPUTE
                (wide if cast else other).update(keys)
    other |= {value.key for value in held(graph.outputs)}
    return frozenset(wide - other)

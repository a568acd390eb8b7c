"""Python numbers computed from the index of the replica, as operands of tensor operations.

Such a number is a constant of the graph, so each replica gets a graph of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from migrate.catalogue.words import RANK_NAME
from migrate.reading.facts import Facts
from migrate.syntax.tree import last_part

# Names of the number of replicas: a `rank` beside one of them is the index of the replica.
SIZES = frozenset({"num_replicas", "num_tasks", "world_size", "world"})
# Methods whose argument is a device, or that run nothing on the device.
OF_DEVICES = frozenset(
    {"cuda", "get_device", "pin_memory", "record_stream", "to", "to_empty", "type"}
)
# Functions of torch that put their arguments into a graph.
COMPUTING = ("torch", "torch.nn.functional", "torch.special", "torch.linalg")
# Maximum number of assignments followed from an operation to the index.
DEEPEST = 4


def takes_index(node: cst.CSTNode, facts: Facts) -> bool:
    """Whether `node` computes with the index of the replica, or with a number computed from the index.

    `x[rank * n :]`, `x + rank`, `x.narrow(0, rank * n, n)`.
    """
    if isinstance(node, cst.Subscript):
        parts = [*positions(node)]
    elif isinstance(node, cst.BinaryOperation):
        parts = [node.left, node.right]
    elif isinstance(node, cst.Call) and operands(node, facts):
        parts = [part for arg in numbers(node) for part in elements(arg)]
    else:
        return False
    return any(follows_index(part, facts) for part in parts)


def operands(call: cst.Call, facts: Facts) -> list[cst.BaseExpression]:
    """Return the operands of `call` that may be tensors: the receiver, or arguments of a torch function."""
    name = facts.context.qualified_name(call.func)
    if name is not None:
        return numbers(call) if name.rpartition(".")[0] in COMPUTING else []
    func = call.func
    if not isinstance(func, cst.Attribute) or facts.context.run_by(call):
        return []
    return [] if func.attr.value in OF_DEVICES else [func.value]


def positions(node: cst.Subscript) -> Iterator[cst.BaseExpression]:
    """Yield the indices and the bounds of slices of a subscript."""
    for element in node.slice:
        part = element.slice
        if isinstance(part, cst.Index):
            yield part.value
        elif isinstance(part, cst.Slice):
            yield from (bound for bound in (part.lower, part.upper) if bound is not None)


def numbers(call: cst.Call) -> list[cst.BaseExpression]:
    """Return the arguments of `call`, without a device."""
    return [arg.value for arg in call.args if arg.keyword is None or arg.keyword.value != "device"]


def elements(value: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """Yield the elements of a tuple or list, or `value` itself."""
    if isinstance(value, cst.Tuple | cst.List):
        yield from (element.value for element in value.elements)
    else:
        yield value


def follows_index(node: cst.BaseExpression, facts: Facts, depth: int = DEEPEST) -> bool:
    """Whether `node` is the index of the replica, or a number computed from it."""
    if isinstance(node, cst.BinaryOperation):
        if facts.values.is_tensor(node):
            return False  # the operation in it is reported
        return follows_index(node.left, facts, depth) or follows_index(node.right, facts, depth)
    if isinstance(node, cst.UnaryOperation):
        return follows_index(node.expression, facts, depth)
    if isinstance(node, cst.IfExp):
        return follows_index(node.body, facts, depth) or follows_index(node.orelse, facts, depth)
    if not isinstance(node, cst.Call | cst.Name | cst.Attribute | cst.Subscript):
        return False
    if facts.values.is_tensor(node):
        return False
    if facts.context.place(node) in facts.context.calls.of_index or facts.context.ranks.is_rank(
        node
    ):
        return True
    if isinstance(node, cst.Call):
        return facts.guards.is_index(node)
    if isinstance(node, cst.Name) and depth:
        binding = facts.bindings.nearest(node)
        if binding is not None:
            value = binding.value
            return isinstance(value, cst.BaseExpression) and follows_index(value, facts, depth - 1)
    # Not by its name alone: the rank of a matrix also bounds its slices.
    named = isinstance(node, cst.Name | cst.Attribute) and RANK_NAME.fullmatch(last_part(node))
    return bool(named) and _is_beside_size(node, facts)


def _is_beside_size(node: cst.CSTNode, facts: Facts) -> bool:
    """Whether the function or class around `node` also knows the number of replicas."""
    around = facts.context.class_around(node) or facts.context.function_around(node)
    if around is None:
        return False
    return any(name.value in SIZES for name in facts.below(around, cst.Name))

"""Tensors that a sampling loop computes from their own last values, and that no read of a turn runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue.words import READ_METHODS, TO_HOST
from migrate.reading.steps.carried import carried
from migrate.reading.steps.loops import Loop
from migrate.reading.steps.unended import is_sampling, models_in
from migrate.syntax.tree import nodes_of, string_value, targets
from migrate.syntax.walk import children

if TYPE_CHECKING:
    from migrate.reading.facts import Facts

NUMBERS = frozenset({"bool", "float", "int"})


def growing_names(loop: Loop, facts: Facts) -> list[str]:
    """Return the variables of a loop that samples whose work grows from turn to turn, in their order.

    A read runs the graph of the value that is read. A hidden state that it only depends on stays pending.
    """
    if not is_sampling(loop, facts):
        return []
    models = list(models_in(loop.body, facts))
    over = loop.target if isinstance(loop, cst.For) else None
    anew = {name.value for name in facts.below(over, cst.Name)} if over is not None else set()
    passed = {
        name.value for call in models for arg in call.args for name in facts.below(arg, cst.Name)
    }
    read = {name.value for name in _read_itself(loop)}
    tensors = _computed(loop, models, facts)
    return [name for name in tensors if name in (carried(loop) & passed) - anew - read]


def _read_itself(loop: Loop) -> Iterator[cst.Name]:
    """Yield the variables that a turn reads themselves: `x.cpu()`, `int(x)`, `if x:`."""
    for call in nodes_of(loop, cst.Call):
        func = call.func
        if isinstance(func, cst.Attribute) and isinstance(func.value, cst.Name):
            if func.attr.value in READ_METHODS or _goes_to_host(call):
                yield func.value
        elif isinstance(func, cst.Name) and func.value in NUMBERS and call.args:
            yield from (arg.value for arg in call.args if isinstance(arg.value, cst.Name))
    for test in (node.test for node in nodes_of(loop, cst.If)):
        if isinstance(test, cst.Name):
            yield test


def _computed(loop: Loop, models: list[cst.Call], facts: Facts) -> list[str]:
    """Return the variables that a turn computes from a model's output, without a read on the way."""
    assigns = list(nodes_of(loop.body, cst.Assign))
    names: dict[str, None] = {}
    before = -1
    while before < len(names):
        before = len(names)
        for assign in assigns:
            if _is_tensor(assign.value, names, models, facts):
                for target in targets(assign):
                    names |= {name.value: None for name in facts.below(target, cst.Name)}
    return list(names)


def _is_tensor(
    node: cst.CSTNode, names: dict[str, None], models: list[cst.Call], facts: Facts
) -> bool:
    if isinstance(node, cst.Name):
        return node.value in names
    if isinstance(node, cst.Attribute):
        return node.attr.value not in TO_HOST and _is_tensor(node.value, names, models, facts)
    if isinstance(node, cst.Subscript):
        return _is_tensor(node.value, names, models, facts)
    if isinstance(node, cst.Call):
        if any(node is call for call in models):
            return True
        if (facts.names.of(node.func) or "").startswith("torch."):
            return any(_is_tensor(arg.value, names, models, facts) for arg in node.args)
        if definitions := facts.context.run_by(node):  # `draw(p)` of the project, computed from p
            return any(
                _is_tensor(arg.value, names, models, facts)
                for definition in definitions
                for index, arg in enumerate(node.args)
                if (arg.keyword.value if arg.keyword else index + definition.bound)
                in definition.handed_back
            )
        is_method = isinstance(node.func, cst.Attribute) and not _goes_to_host(node)
        return is_method and _is_tensor(node.func, names, models, facts)
    operations = cst.BinaryOperation | cst.UnaryOperation | cst.Tuple | cst.IfExp | cst.Element
    return isinstance(node, operations) and any(
        _is_tensor(child, names, models, facts) for child in children(node)
    )


def _goes_to_host(call: cst.Call) -> bool:
    func = call.func
    is_to = isinstance(func, cst.Attribute) and func.attr.value == "to" and bool(call.args)
    return is_to and string_value(call.args[0].value) == "cpu"

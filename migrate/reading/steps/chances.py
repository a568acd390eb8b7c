"""Functions that the host chooses at random, and collections with a different order in each process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue.drawing import ORDERS
from migrate.reading.names.bindings import How
from migrate.reading.steps.drawn import drawn_of
from migrate.syntax.tree import code

if TYPE_CHECKING:
    from migrate.reading.facts import Facts

# Views of a mapping.
VIEWS = frozenset({"items", "keys", "values"})
DEEPEST = 4


def _values(name: cst.Name, facts: Facts) -> Iterator[cst.BaseExpression]:
    """Yield the expressions that may be the value of `name` where it stands."""
    for assignment in facts.bindings.reaching(name):
        if assignment.how is How.VALUE and assignment.value is not None:
            yield assignment.value


def is_chosen(function: cst.BaseExpression, facts: Facts, depth: int = 0) -> bool:
    """Whether the choice of this function is random: `layers[i]`, `choice(layers)`, `getattr(self, name)`."""
    if isinstance(function, cst.Name) and depth < DEEPEST:
        return any(is_chosen(value, facts, depth + 1) for value in _values(function, facts))
    drawn = drawn_of(facts)
    if isinstance(function, cst.Subscript):
        indices = (part.slice for part in function.slice)
        return any(isinstance(i, cst.Index) and drawn.is_drawn(i.value) for i in indices)
    if not isinstance(function, cst.Call):
        return False
    if isinstance(function.func, cst.Name) and function.func.value == "getattr":
        return len(function.args) > 1 and drawn.is_drawn(function.args[1].value)
    return facts.names.of(function.func) in ORDERS


def is_in_drawn_order(turns: cst.BaseExpression, facts: Facts, depth: int = 0) -> bool:
    """Whether a loop iterates over values that the host has chosen or ordered at random."""
    if isinstance(turns, cst.Name) and depth < DEEPEST:
        around = facts.context.function_around(turns) or facts.context.module
        shuffled = any(
            (facts.names.of(call.func) or "").endswith("random.shuffle")
            and bool(call.args)
            and code(call.args[0].value) == turns.value
            for call in facts.below(around, cst.Call)
        )
        return shuffled or any(
            is_in_drawn_order(value, facts, depth + 1) for value in _values(turns, facts)
        )
    if not isinstance(turns, cst.Call):
        return False
    if isinstance(turns.func, cst.Name) and turns.func.value in (
        "list",
        "tuple",
        "enumerate",
        "zip",
    ):
        return any(is_in_drawn_order(arg.value, facts, depth) for arg in turns.args)
    return facts.names.of(turns.func) in ORDERS


def mapping_of(
    value: cst.BaseExpression, facts: Facts, depth: int = 0
) -> cst.BaseExpression | None:
    """Return the mapping whose items, keys or values a collection holds, in any order."""
    if isinstance(value, cst.Name) and depth < DEEPEST:
        mappings = (
            mapping_of(alternative, facts, depth + 1) for alternative in _values(value, facts)
        )
        return next((of for of in mappings if of is not None), None)
    if not isinstance(value, cst.Call):
        return None
    if isinstance(value.func, cst.Attribute) and value.func.attr.value in VIEWS:
        return value.func.value if not value.args else None
    wraps = isinstance(value.func, cst.Name) and value.func.value in ("list", "tuple", "sorted")
    return mapping_of(value.args[0].value, facts, depth) if wraps and value.args else None


def is_set_of_strings(turns: cst.BaseExpression, facts: Facts, depth: int = 0) -> bool:
    """Whether a loop iterates over a set of strings, whose order differs in each process."""
    if isinstance(turns, cst.Name) and depth < DEEPEST:
        return any(is_set_of_strings(value, facts, depth + 1) for value in _values(turns, facts))
    if isinstance(turns, cst.Set):
        return any(isinstance(element.value, cst.SimpleString) for element in turns.elements)
    if isinstance(turns, cst.BinaryOperation):
        return any(is_set_of_strings(s, facts, depth) for s in (turns.left, turns.right))
    if not isinstance(turns, cst.Call) or not isinstance(turns.func, cst.Name) or not turns.args:
        return False
    of = turns.args[0].value
    if turns.func.value in ("list", "tuple", "enumerate", "reversed", "iter"):
        return is_set_of_strings(of, facts, depth)
    if turns.func.value not in ("set", "frozenset"):
        return False
    if isinstance(of, cst.List | cst.Tuple):
        return any(isinstance(element.value, cst.SimpleString) for element in of.elements)
    return mapping_of(of, facts) is not None

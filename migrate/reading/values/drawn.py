"""Numbers that Python, NumPy or torch draws at random on the host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from migrate.reading.catalogue.drawing import HOST_DRAWS, HOST_GENERATORS, MAKERS, SAMPLERS
from migrate.reading.names.bindings import How
from migrate.reading.tree.tree import code, is_attribute_of_self, last_part
from migrate.reading.values.kind import Kind

if TYPE_CHECKING:
    from migrate.reading.facts import Facts

# What gives a drawn number again, perhaps as another type.
PLAIN = frozenset({"abs", "bool", "float", "int", "max", "min", "round", "sum"})
READS = frozenset({"all", "any", "item", "tolist"})
DEEPEST = 4


def drawn(node: cst.CSTNode | None, facts: Facts, depth: int = 0) -> cst.BaseExpression | None:
    """Return the call in `node` by which the host draws the number that `node` is made of; None without one.

    Names are followed to what the function around them gives them, parameters to what calls pass, attributes
    to what a step gives them, and calls to what functions of the script return.
    """
    if depth > DEEPEST or not isinstance(node, cst.BaseExpression):
        return None
    if isinstance(node, cst.Call):
        return _of_call(node, facts, depth)
    parts = _of_name(node, facts) if isinstance(node, cst.Name | cst.Attribute) else _parts(node)
    deeper = depth + isinstance(node, cst.Name | cst.Attribute)
    found = (drawn(part, facts, deeper) for part in parts)
    return next((call for call in found if call is not None), None)


def _parts(node: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """Yield the expressions that the number `node` is computed from."""
    if isinstance(node, cst.Comparison):
        if not any(isinstance(one.operator, cst.Is | cst.IsNot) for one in node.comparisons):
            yield node.left
            yield from (target.comparator for target in node.comparisons)
    elif isinstance(node, cst.BinaryOperation | cst.BooleanOperation):
        yield from (node.left, node.right)
    elif isinstance(node, cst.UnaryOperation):
        yield node.expression
    elif isinstance(node, cst.Subscript | cst.NamedExpr):
        yield node.value


def _of_name(node: cst.Name | cst.Attribute, facts: Facts) -> Iterator[cst.BaseExpression]:
    """Yield what `node` is given where it is another value in each step."""
    if isinstance(node, cst.Attribute):
        if is_attribute_of_self(node):
            for target, value in facts.context.attributes.get(node.attr.value, ()):
                if value is not None and code(target) == code(node) and facts.steps.inside(target):
                    yield value
        return
    around = facts.bindings.owner(node)
    for given in facts.bindings.given(node):
        plain = given.how in (How.VALUE, How.PART) and given.value is not None
        if plain and given.value is not None and facts.bindings.owner(given.value) is around:
            yield given.value
    parameter = facts.bindings.parameter(node)
    if parameter is not None:
        yield from facts.bindings.passed(parameter[0], node.value)


def _of_call(call: cst.Call, facts: Facts, depth: int) -> cst.BaseExpression | None:
    name = facts.names.of(call.func) or ""
    last = name.rpartition(".")[2]
    if name.startswith(("random.", "numpy.random.")):
        return call if last in HOST_DRAWS else None
    if name.startswith("torch.") and last in MAKERS | SAMPLERS:
        return call if facts.values.kind(call) is Kind.HOST else None
    if isinstance(call.func, cst.Name) and call.func.value in PLAIN:
        return next((d for a in call.args if (d := drawn(a.value, facts, depth))), None)
    called = facts.context.called(call)
    for function in called:
        for value in facts.bindings.returns.get(id(function), ()):
            if (found := drawn(value, facts, depth + 1)) is not None:
                return found
    if isinstance(call.func, cst.Attribute) and not called and not name:
        if last_part(call.func) in READS:
            return drawn(call.func.value, facts, depth)
        if last_part(call.func) in HOST_DRAWS and _is_generator(call.func.value, facts):
            return call
    return None


def _is_generator(node: cst.BaseExpression, facts: Facts) -> bool:
    """Whether `node` is a generator of Python or NumPy: `rng = np.random.default_rng(0)`."""
    if isinstance(node, cst.Name):
        made = [given.value for given in facts.bindings.given(node)]
    elif isinstance(node, cst.Attribute):
        made = [value for _, value in facts.context.attributes.get(node.attr.value, ())]
    else:
        made = [node]
    return any(
        isinstance(value, cst.Call) and facts.names.of(value.func) in HOST_GENERATORS
        for value in made
    )

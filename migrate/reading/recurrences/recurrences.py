"""Loops over a tensor size in which each turn computes with the tensor that the previous turn left."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue.words import DESCRIBES, DESCRIBING_METHODS, ONLY_TENSORS, words
from migrate.reading.names.bindings import Assignment, How
from migrate.reading.steps.carried import carried
from migrate.syntax.tree import code, last_part, nodes_of

if TYPE_CHECKING:
    from migrate.reading.facts import Facts

# Functions that yield as many elements as their argument.
AROUND = words("enumerate list reversed tqdm tuple")
COUNTS = words("range trange")
# Functions whose result is a size if an argument is a size.
PLAIN = words("int max min")
OF_TENSORS = ONLY_TENSORS | words("device dtype ndim shape size")
DEEPEST = 5


def recurrence(loop: cst.For, facts: Facts) -> tuple[str, str] | None:
    """Return what the turns of `loop` carry and the number of turns, or None if it is no recurrence.

    Examples:
        `h` and `x.shape[1]` of `for t in range(x.shape[1]): h = h * a[:, t] + x[:, t]`.
    """
    size = _turns(loop.iter, facts)
    if size is None or _goes_through_layers(loop):
        return None
    counters = {name.value for name in facts.below(loop.target, cst.Name)}
    for name in sorted(carried(loop) - counters - {"self"}):
        if _is_tensor(name, loop, facts) and _depends_on_itself(name, counters, loop, facts):
            return name, size
    return None


def _turns(over: cst.BaseExpression, facts: Facts, depth: int = 0) -> str | None:
    """Return the number of turns of a loop over `over`, if a tensor size decides it."""
    if depth > DEEPEST:
        return None  # `steps = tqdm(steps)`
    if isinstance(over, cst.Name):
        values = [assignment.value for assignment in facts.bindings.given(over)]
        only = values[0] if len(values) == 1 else None
        return _turns(only, facts, depth + 1) if isinstance(only, cst.Call) else None
    if not isinstance(over, cst.Call):
        return None
    name = last_part(over.func)
    args = [arg.value for arg in over.args if arg.keyword is None and not arg.star]
    if name in COUNTS:
        if len(args) == 3 and code(args[2]) not in ("1", "-1"):
            return None  # a few turns, of a part each
        size = next((arg for arg in args[:2] if _is_size(arg, facts)), None)
        return f"`{code(size)}`" if size is not None else None
    if name == "unbind" and isinstance(over.func, cst.Attribute):
        return f"the length of `{code(over)}`"
    if name == "zip":
        return next(filter(None, (_turns(arg, facts, depth + 1) for arg in args)), None)
    return _turns(args[0], facts, depth + 1) if name in AROUND and args else None


def _is_size(node: cst.BaseExpression, facts: Facts, depth: int = 0) -> bool:
    """Whether `node` is a number that a tensor size decides."""
    if depth > DEEPEST:
        return False
    if isinstance(node, cst.BinaryOperation):
        if isinstance(node.operator, cst.Modulo):
            return False
        return any(_is_size(side, facts, depth) for side in (node.left, node.right))
    if isinstance(node, cst.Subscript):
        return _is_shape(node.value)
    if isinstance(node, cst.Name):
        return any(
            _is_given_size(assignment, facts, depth + 1)
            for assignment in facts.bindings.given(node)
        ) or (_is_passed_size(node, facts, depth + 1))
    if not isinstance(node, cst.Call) or not node.args:
        return False
    name = last_part(node.func)
    if isinstance(node.func, cst.Attribute):
        return name == "size"
    first = node.args[0].value
    if name == "len":
        return _is_used_as_tensor(first, facts)
    if name in PLAIN:
        return all(_is_size(arg.value, facts, depth) for arg in node.args)
    return False


def _is_given_size(assignment: Assignment, facts: Facts, depth: int) -> bool:
    if assignment.value is None:
        return False
    if assignment.how is How.PART:
        return _is_shape(assignment.value)
    return assignment.how is How.VALUE and _is_size(assignment.value, facts, depth)


def _is_passed_size(name: cst.Name, facts: Facts, depth: int) -> bool:
    """Whether callers pass a size for the parameter `name`."""
    parameter = facts.bindings.parameter(name)
    if parameter is None:
        return False
    function, param = parameter
    passed = facts.bindings.passed(function, param.name.value)
    return any(_is_size(value, facts, depth) for value in passed)


def _is_shape(node: cst.BaseExpression) -> bool:
    """Whether `node` is `x.shape` or `x.size()`, or some sizes of it."""
    if isinstance(node, cst.Subscript):
        return _is_shape(node.value)
    if isinstance(node, cst.Call):
        return last_part(node.func) == "size" and not node.args
    return isinstance(node, cst.Attribute) and node.attr.value == "shape"


def _is_used_as_tensor(node: cst.BaseExpression, facts: Facts) -> bool:
    """Whether the function around uses the name `node` in ways that fit tensors, not lists of tensors."""
    if not isinstance(node, cst.Name) or not facts.values.is_tensor(node):
        return False
    used = facts.bindings.used[id(facts.bindings.owner(node)), node.value]
    return not used.isdisjoint(OF_TENSORS)


def _goes_through_layers(loop: cst.For) -> bool:
    """Whether the turns call one layer after another: `self.layers[i](x)`."""
    counters = {name.value for name in nodes_of(loop.target, cst.Name)}
    return any(
        isinstance(call.func, cst.Subscript)
        and any(name.value in counters for name in nodes_of(call.func, cst.Name))
        for call in nodes_of(loop.body, cst.Call)
    )


def _is_tensor(name: str, loop: cst.For, facts: Facts) -> bool:
    """Whether the variable `name`, which the turns of `loop` bind, is a tensor."""
    mentions = [
        node
        for node in facts.below(loop.body, cst.Name)
        if node.value == name and facts.context.bindings(node)
    ]
    values = (
        [assignment.value for assignment in facts.bindings.given(mentions[0])] if mentions else []
    )
    return any(map(facts.values.is_tensor, [*values, *mentions])) or any(
        isinstance(value, cst.Call) and _makes_alike(value, facts) for value in values
    )


def _makes_alike(call: cst.Call, facts: Facts) -> bool:
    """Whether `call` makes a tensor like another tensor: `torch.zeros_like(x)`, `x.new_zeros(3)`."""
    name = facts.names.of(call.func) or ""
    return (name.startswith("torch.") and name.endswith("_like")) or (
        not name
        and isinstance(call.func, cst.Attribute)
        and call.func.attr.value.startswith("new_")
    )


def _depends_on_itself(name: str, counters: set[str], loop: cst.For, facts: Facts) -> bool:
    """Whether a turn reads `name` for more than adding to it: a sum is no recurrence."""
    stores: set[int] = set()
    for assign in nodes_of(loop.body, cst.Assign | cst.AugAssign):  # type: ignore[arg-type]
        if isinstance(assign, cst.AugAssign):
            into = [assign.target]
            adds = isinstance(assign.operator, cst.AddAssign | cst.SubtractAssign)
            if code(assign.target) == name and not adds:
                return True
        else:
            into = [target.target for target in assign.targets]
            stores.update(id(part) for part in _summands(assign.value) if code(part) == name)
        for target in into:
            stores.update(id(name) for name in facts.below(target, cst.Name))
            if _is_own_part(target, counters):  # `out[:, t] = out[:, t] * 2`
                same = (
                    subscript
                    for subscript in facts.below(assign.value, cst.Subscript)
                    if code(subscript) == code(target)
                )
                stores.update(
                    id(part) for subscript in same for part in facts.below(subscript, cst.Name)
                )
    reads = (mention for mention in facts.below(loop.body, cst.Name) if mention.value == name)
    return any(id(mention) not in stores and not _is_described(mention, facts) for mention in reads)


def _summands(value: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """Yield the parts of a sum: `total` and `x` of `total + x`."""
    if isinstance(value, cst.BinaryOperation) and isinstance(
        value.operator, cst.Add | cst.Subtract
    ):
        yield from _summands(value.left)
        yield from _summands(value.right)
    elif isinstance(value, cst.Name):
        yield value


def _is_described(name: cst.Name, facts: Facts) -> bool:
    """Whether the code only asks for the shape of `name`: `name.shape`, `name.size(0)`."""
    above = facts.context.parent(name)
    return (
        isinstance(above, cst.Attribute)
        and above.value is name
        and above.attr.value in DESCRIBES | DESCRIBING_METHODS
    )


def _is_own_part(target: cst.BaseExpression, counters: set[str]) -> bool:
    """Whether `target` is the part of a tensor that belongs to this turn: `out[:, t]`."""
    return isinstance(target, cst.Subscript) and any(
        node.value in counters for part in target.slice for node in nodes_of(part, cst.Name)
    )

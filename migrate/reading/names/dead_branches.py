"""Code of a script that never runs because the test before it is constant."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import libcst as cst

from migrate.reading.names.bindings import calls_of
from migrate.reading.names.parsed import Parsed
from migrate.syntax.tree import bind, code, is_attribute_of_self, nodes, nodes_of
from migrate.syntax.walk import children

DEEPEST = 4
INFINITE = frozenset({"math.inf", "numpy.inf", "torch.inf"})
WORDS: dict[str, object] = {"True": True, "False": False, "None": None}
COMPARED: dict[type[cst.BaseCompOp], Callable[[object, object], object]] = {
    cst.Equal: operator.eq,
    cst.NotEqual: operator.ne,
    cst.Is: operator.is_,
    cst.IsNot: operator.is_not,
}
ORDERED: dict[type[cst.BaseCompOp], Callable[[float, float], bool]] = {
    cst.GreaterThan: operator.gt,
    cst.GreaterThanEqual: operator.ge,
    cst.LessThan: operator.lt,
    cst.LessThanEqual: operator.le,
}
LEAVING = (cst.Return, cst.Raise, cst.Continue, cst.Break)
# Calls that may set a variable by its name in a text: `exec(open("configurator.py").read())`.
RUN_TEXT = ("exec", "globals")


@dataclass(frozen=True)
class Truth:
    """Truth of a value that may vary: `size or 4` is true, whatever `size` is."""

    holds: bool

    def __bool__(self) -> bool:
        return self.holds


def live_nodes(root: cst.CSTNode, script: Parsed) -> Iterator[cst.CSTNode]:
    """Yield `root` and the nodes below it, without the branches that constant tests rule out."""
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        dead = {id(branch) for branch in _dead_parts(node, script)}
        stack.extend(child for child in reversed([*children(node)]) if id(child) not in dead)


def never_runs(node: cst.CSTNode, script: Parsed) -> str | None:
    """Return why `node` never runs, or None: a statement that leaves before it, or a test above it, decides.

    The reason is empty if the code itself decides (`return`, `if False:`). It is the test if a variable
    decides that somebody may set to another constant (`DEBUG = False`).
    """
    below = node
    first_reason: str | None = None
    for above in script.ancestors(node):
        for reason in _reasons(above, below, script):
            if not reason:
                return reason
            first_reason = first_reason or reason
        below = above
    return first_reason


def _reasons(above: cst.CSTNode, below: cst.CSTNode, script: Parsed) -> Iterator[str]:
    """Yield the reason why the child `below` of `above` never runs, for each test that decides it."""
    if isinstance(above, cst.If | cst.IfExp):
        value = _set(above.test, script)
        if value is not None and below is (above.orelse if value[0] else above.body):
            yield _reason(above.test, value)
    elif isinstance(above, cst.BooleanOperation):
        value = _set(above.left, script)
        decides = value is not None and bool(value[0]) is isinstance(above.operator, cst.Or)
        if value is not None and decides and below is above.right:
            yield _reason(above.left, value)
    elif isinstance(above, cst.IndentedBlock | cst.Module):
        for statement in above.body:
            if statement is below:
                return
            yield from _way_out(statement, script)


def _way_out(statement: cst.CSTNode, script: Parsed) -> Iterator[str]:
    """Yield the reason why nothing below `statement` in its block runs: it always leaves the block."""
    if isinstance(statement, cst.SimpleStatementLine):
        if isinstance(statement.body[-1], LEAVING):
            yield ""
    elif isinstance(statement, cst.If):
        branches = [next(_ways(branch, script), None) for branch in _branches(statement)]
        value = _set(statement.test, script)
        if value is not None:
            taken = branches[0] if value[0] else branches[1] if len(branches) > 1 else None
            if taken is not None:
                yield taken or _reason(statement.test, value)
        elif len(branches) > 1 and None not in branches:
            yield next(filter(None, branches), "")


def _branches(statement: cst.If) -> list[cst.CSTNode]:
    orelse = statement.orelse
    other = orelse.body if isinstance(orelse, cst.Else) else orelse
    return [statement.body] if other is None else [statement.body, other]


def _ways(branch: cst.CSTNode, script: Parsed) -> Iterator[str]:
    if isinstance(branch, cst.If):
        yield from _way_out(branch, script)
    elif isinstance(branch, cst.IndentedBlock):
        for statement in branch.body:
            yield from _way_out(statement, script)
    elif isinstance(branch, cst.SimpleStatementSuite) and isinstance(branch.body[-1], LEAVING):
        yield ""


def _set(test: cst.BaseExpression, script: Parsed) -> tuple[object] | None:
    """Return the constant value of `test`, unless another file or executed text may set it."""
    plain = [part for part in nodes(test) if isinstance(part, cst.Attribute | cst.Call)]
    if any(_infinite(part, script) is None for part in plain):
        return None
    value = constant(test, script)
    return None if value is None or _is_set_elsewhere(test, script) else value


def _is_set_elsewhere(test: cst.BaseExpression, script: Parsed) -> bool:
    variables = [
        name
        for name in script.below(test, cst.Name)
        if name.value not in WORDS and not _of_infinity(name, script)
    ]
    if not variables:
        return False
    if any(name.value in script.calls.set_elsewhere for name in variables):
        return True
    owners = [_owner(name, script) for name in variables]
    if any(owner is not None for owner in owners):
        return script.calls.imported and any(
            owner is None or owner.name.value in script.calls.named_elsewhere for owner in owners
        )
    return any(script.mentions(cst.Name(word)) for word in RUN_TEXT)


def _owner(name: cst.Name, script: Parsed) -> cst.FunctionDef | None:
    """Return the function of which `name` is a parameter, also one that it makes a number."""
    owner, value = script.bound_to(name)
    binding = _made_a_number(name, script)
    value = binding if binding is not None else value
    return owner if isinstance(value, cst.Param) and isinstance(owner, cst.FunctionDef) else None


def _made_a_number(name: cst.Name, script: Parsed) -> cst.Param | None:
    """Return the parameter `name` whose function says nothing else of it than `name = float(name)`."""
    params = [b.node for b in script.bindings(name) if isinstance(script.value_of(b), cst.Param)]
    others = [script.value_of(b) for b in script.bindings(name)]
    others = [value for value in others if not isinstance(value, cst.Param)]
    same = [f"{kind}({name.value})" for kind in ("float", "int")]
    if len(params) != 1 or len(others) != 1 or others[0] is None or code(others[0]) not in same:
        return None
    value = next(script.value_of(b) for b in script.bindings(name) if b.node is params[0])
    return value if isinstance(value, cst.Param) else None


def _of_infinity(name: cst.Name, script: Parsed) -> bool:
    """Whether `name` is `inf`, or the module in `torch.inf`."""
    above = script.parent(name)
    return _infinite(name, script) is not None or (
        isinstance(above, cst.Attribute | cst.Call) and _infinite(above, script) is not None
    )


def _infinite(node: cst.CSTNode, script: Parsed) -> tuple[object] | None:
    """Return infinity for `torch.inf`, `math.inf`, `inf` of these and `float("inf")`; else None."""
    if isinstance(node, cst.Call) and code(node) in ('float("inf")', "float('inf')"):
        return (math.inf,)
    if isinstance(node, cst.Name | cst.Attribute) and script.qualified_name(node) in INFINITE:
        return (math.inf,)
    return None


def _reason(test: cst.BaseExpression, value: tuple[object]) -> str:
    if all(name.value in WORDS for name in nodes_of(test, cst.Name)):
        return ""
    return f"`{code(test)}` is {bool(value[0])}"


def _dead_parts(node: cst.CSTNode, script: Parsed) -> Iterator[cst.CSTNode]:
    """Yield the children of `node` that never run."""
    if type(node) is cst.If or type(node) is cst.IfExp:
        value = constant(node.test, script)
        if value is not None:
            dead = node.orelse if value[0] else node.body
            if dead is not None:
                yield dead
    elif type(node) is cst.BooleanOperation:
        value = constant(node.left, script)
        if value is not None and bool(value[0]) is isinstance(node.operator, cst.Or):
            yield node.right
    elif type(node) is cst.IndentedBlock:
        for index, statement in enumerate(node.body):
            if type(statement) is cst.If and _always_leaves(statement, script):
                yield from node.body[index + 1 :]
                return


def _always_leaves(statement: cst.If, script: Parsed) -> bool:
    last = statement.body.body[-1]
    if isinstance(last, cst.SimpleStatementLine):
        last = last.body[-1]
    if not isinstance(last, cst.Return | cst.Raise):
        return False
    value = constant(statement.test, script)
    return value is not None and bool(value[0])


def constant(
    node: cst.BaseExpression, script: Parsed, depth: int = DEEPEST
) -> tuple[object] | None:
    """Return the constant value of `node` in a tuple; None if the value may vary.

    Constants are: names bound once to a constant, attributes that only `__init__` sets, and parameters for
    which all calls pass the same constant. If only its truth is constant, the value is a `Truth`.
    """
    if depth == 0:
        return None
    if isinstance(node, cst.Name):
        if node.value in WORDS:
            return (WORDS[node.value],)
        if (endless := _infinite(node, script)) is not None:
            return endless
        return _of_name(node, script, depth)
    if isinstance(node, cst.Integer | cst.Float | cst.SimpleString):
        return (node.evaluated_value,)
    if isinstance(node, cst.Attribute | cst.Call) and (endless := _infinite(node, script)):
        return endless
    if isinstance(node, cst.Attribute):
        return _of_attribute(node, script, depth)
    if isinstance(node, cst.UnaryOperation):
        value = constant(node.expression, script, depth)
        if value is not None and isinstance(node.operator, cst.Not):
            return (not value[0],)
        if value is not None and isinstance(node.operator, cst.Minus):
            return (-value[0],) if isinstance(value[0], int | float) else None
        return None
    if isinstance(node, cst.BooleanOperation):
        return _of_both(node, script, depth)
    if isinstance(node, cst.Comparison):
        return _of_comparison(node, script, depth)
    if isinstance(node, cst.IfExp):
        test = constant(node.test, script, depth)
        if test is not None:
            return constant(node.body if test[0] else node.orelse, script, depth)
    return None


def _of_both(node: cst.BooleanOperation, script: Parsed, depth: int) -> tuple[object] | None:
    left, right = constant(node.left, script, depth), constant(node.right, script, depth)
    decides = isinstance(node.operator, cst.Or)
    if left is not None:
        return left if bool(left[0]) is decides else right
    if right is not None and bool(right[0]) is decides:
        return (Truth(decides),)
    return None


def _of_comparison(node: cst.Comparison, script: Parsed, depth: int) -> tuple[object] | None:
    if len(node.comparisons) != 1:
        return None
    kind = type(node.comparisons[0].operator)
    left = constant(node.left, script, depth)
    right = constant(node.comparisons[0].comparator, script, depth)
    if left is None or right is None or isinstance(left[0], Truth) or isinstance(right[0], Truth):
        return None
    if kind in COMPARED:
        return (COMPARED[kind](left[0], right[0]),)
    a, b = left[0], right[0]
    if kind in ORDERED and isinstance(a, int | float) and isinstance(b, int | float):
        return (ORDERED[kind](a, b),)
    return None


def _of_name(name: cst.Name, script: Parsed, depth: int) -> tuple[object] | None:
    bindings = script.bindings(name)
    if len(bindings) == 2 and (parameter := _made_a_number(name, script)) is not None:
        return _of_parameter(name, bindings[0].scope.node, parameter, script, depth)
    if len(bindings) != 1:
        return None
    owner, value = script.bound_to(name)
    if isinstance(value, cst.Param):
        return _of_parameter(name, owner, value, script, depth)
    if value is None:
        value = _element(bindings[0].node, script)
    return constant(value, script, depth - 1) if value is not None else None


def _element(target: cst.CSTNode, script: Parsed) -> cst.BaseExpression | None:
    """Return the value of `target` in `a, b = 1, 2`, and in `a = b = 1`."""
    element = script.parent(target)
    several = script.parent(element)
    if isinstance(element, cst.AssignTarget) and isinstance(several, cst.Assign):
        return several.value
    assigned = script.parent(several)
    assign = script.parent(assigned)
    if (
        not isinstance(element, cst.Element)
        or not isinstance(several, cst.Tuple | cst.List)
        or not isinstance(assigned, cst.AssignTarget)
        or not isinstance(assign, cst.Assign)
        or not isinstance(assign.value, cst.Tuple | cst.List)
    ):
        return None
    parts = (*several.elements, *assign.value.elements)
    if len(several.elements) != len(assign.value.elements):
        return None
    if any(isinstance(part, cst.StarredElement) for part in parts):
        return None
    index = next(i for i, part in enumerate(several.elements) if part is element)
    return assign.value.elements[index].value


def _of_parameter(
    name: cst.Name, owner: cst.CSTNode | None, parameter: cst.Param, script: Parsed, depth: int
) -> tuple[object] | None:
    """Return the constant that all calls of a function pass for a parameter, or leave to the default."""
    if not isinstance(owner, cst.FunctionDef) or owner.decorators:
        return None
    params = owner.params
    names = [
        each.name.value for each in (*params.posonly_params, *params.params, *params.kwonly_params)
    ]
    values: list[tuple[object] | None] = []
    for call in calls_of(owner, script):
        bound = bind(call, names)
        if bound is None:
            return None
        argument = bound[name.value].value if name.value in bound else parameter.default
        values.append(constant(argument, script, depth - 1) if argument is not None else None)
    first = values[0] if values else None
    same = first is not None and all(
        value is not None and type(value[0]) is type(first[0]) and value == first
        for value in values
    )
    return first if same else None


def _of_attribute(node: cst.Attribute, script: Parsed, depth: int) -> tuple[object] | None:
    """Return the constant that `__init__` assigns to an attribute of `self`, if nothing else assigns it."""
    assigned = script.attributes.get(node.attr.value, [])
    if not is_attribute_of_self(node) or len(assigned) != 1:
        return None
    target, value = assigned[0]
    function = script.function_around(target)
    if (
        value is None
        or function is None
        or function.name.value != "__init__"
        or not is_attribute_of_self(target)
        or script.class_around(target) is not script.class_around(node)
        or script.parent(script.statement_around(target)) is not function.body
    ):
        return None
    return constant(value, script, depth - 1)

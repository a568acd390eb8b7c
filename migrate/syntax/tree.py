"""Common questions of the rules about a concrete syntax tree."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from typing import TypeGuard

import libcst as cst
from libcst.helpers import get_full_name_for_node

from migrate.syntax.interpreter import unwarned
from migrate.syntax.walk import children, code_nodes
from migrate.syntax.walk import nodes as nodes
from migrate.syntax.walk import nodes_of as nodes_of

_EMPTY = cst.Module(body=[])
TARGETED: frozenset[type[cst.CSTNode]] = frozenset(
    {
        cst.AssignTarget,
        cst.AugAssign,
        cst.AnnAssign,
        cst.NamedExpr,
        cst.For,
        cst.CompFor,
        cst.AsName,
    }
)


def targets(root: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """Yield the assignment targets at and below `root`, tuples unpacked: names, attributes, subscripts."""
    for node in code_nodes(root):
        if type(node) in TARGETED:
            yield from assigned_by(node)


def bound_call(node: cst.CSTNode) -> tuple[cst.Name, cst.Call] | None:
    """Return the variable and the call of a statement `name = call(…)`, or None for any other statement."""
    if not isinstance(node, cst.SimpleStatementLine) or len(node.body) != 1:
        return None
    assign = node.body[0]
    if not isinstance(assign, cst.Assign) or len(assign.targets) != 1:
        return None
    target, value = assign.targets[0].target, assign.value
    if not isinstance(target, cst.Name) or not isinstance(value, cst.Call):
        return None
    return target, value


def assigned_by(node: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """Yield the assignment targets of `node`, of a type in TARGETED, with tuples unpacked."""
    yield from _flat(getattr(node, "target", None) or node.name)  # type: ignore[attr-defined]


def _flat(target: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    if isinstance(target, cst.Tuple | cst.List):
        for element in target.elements:
            yield from _flat(element.value)
    else:
        yield target


def used(
    root: cst.CSTNode, besides: Collection[cst.CSTNode] = ()
) -> Iterator[cst.Name | cst.Attribute]:
    """Yield the names and the attributes of `self` that `root` mentions, except below `besides`.

    For `a.b` the name is `a`; the keyword of an argument does not count.
    """
    left_out = {id(node) for node in besides}
    stack = [root]
    while stack:
        node = stack.pop()
        if id(node) in left_out:
            continue
        if isinstance(node, cst.Name) or is_attribute_of_self(node):
            yield node
        elif isinstance(node, cst.Attribute | cst.Arg):
            stack.append(node.value)
        else:
            stack += reversed(children(node))


def keyword(call: cst.Call, name: str) -> cst.Arg | None:
    """Return the argument that `call` passes by the keyword `name`."""
    for arg in call.args:
        if arg.keyword is not None and arg.keyword.value == name:
            return arg
    return None


def parameters_of(function: cst.FunctionDef, call: cst.Call) -> list[str]:
    """Return the parameters of `function` for which `call` passes an argument, without `self`."""
    parameters = (
        *function.params.posonly_params,
        *function.params.params,
        *function.params.kwonly_params,
    )
    names = [parameter.name.value for parameter in parameters]
    return names[names[:1] == ["self"] and isinstance(call.func, cst.Attribute) :]


def bind(call: cst.Call, parameters: Sequence[str]) -> dict[str, cst.Arg] | None:
    """Return the argument of each of `parameters`, given in the order of the signature.

    None if the call does not show it: `*args`, `**kwargs`, too many arguments, or an unknown keyword.
    """
    bound: dict[str, cst.Arg] = {}
    for index, arg in enumerate(call.args):
        if arg.star:
            return None
        if arg.keyword is not None:
            name = arg.keyword.value
            if name not in parameters:
                return None
        elif index < len(parameters):
            name = parameters[index]
        else:
            return None
        bound[name] = arg
    return bound


def is_dotted_name(node: cst.CSTNode) -> bool:
    """Whether `node` is a name, or attributes of a name: `a.b.c`, not `a().c`."""
    while type(node) is cst.Attribute:
        node = node.value
    return type(node) is cst.Name


def is_attribute_of_self(node: cst.CSTNode | None) -> TypeGuard[cst.Attribute]:
    """Whether `node` is `self.NAME`."""
    return (
        type(node) is cst.Attribute and type(node.value) is cst.Name and node.value.value == "self"
    )


def elements(arg: cst.Arg) -> list[cst.BaseElement]:
    """Return the elements of the tuple or list that `arg` passes; empty for other arguments."""
    value = arg.value
    return list(value.elements) if isinstance(value, cst.Tuple | cst.List) else []


def string_value(node: cst.CSTNode | None) -> str | None:
    """Return the value of a plain string literal, else None."""
    if type(node) is not cst.SimpleString and type(node) is not cst.ConcatenatedString:
        return None
    if type(node) is cst.SimpleString and node.value[0] in "'\"" and "\\" not in node.value:
        return node.raw_value  # evaluating it costs a compilation
    with unwarned():
        value = node.evaluated_value
    return value if isinstance(value, str) else None


def is_none(node: cst.CSTNode | None) -> bool:
    """Whether `node` is the literal None."""
    return isinstance(node, cst.Name) and node.value == "None"


def code(node: cst.CSTNode) -> str:
    """Return the source text of `node` on one line."""
    kind = type(node)
    if kind is cst.Name or kind is cst.Attribute:
        plain = _plain(node)
        if plain:
            return plain
    return _written(node)


@lru_cache(
    maxsize=1024
)  # a node is asked for its text again and again; equal are only the same nodes
def _written(node: cst.CSTNode) -> str:
    return " ".join(_EMPTY.code_for_node(node).split())


def line_call(statement: cst.CSTNode | None) -> cst.Call | None:
    """Return the call that a line consists of, or None for another statement."""
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
        return None
    line = statement.body[0]
    return line.value if isinstance(line, cst.Expr) and isinstance(line.value, cst.Call) else None


def first_line(statement: cst.CSTNode) -> str:
    """Return the first line of a statement, without what stands above it: `try:`, `for x in loader:`."""
    bare = statement
    if hasattr(statement, "leading_lines"):
        bare = statement.with_changes(leading_lines=())
    return _EMPTY.code_for_node(bare).strip().splitlines()[0]


def _plain(node: cst.CSTNode) -> str:
    """Return the text of a dotted name without spaces and parentheses; empty for anything else."""
    parts: list[str] = []
    while type(node) is cst.Attribute:
        before, after = node.dot.whitespace_before, node.dot.whitespace_after
        if not (before.empty and after.empty) or node.lpar or node.attr.lpar:
            return ""
        parts.append(node.attr.value)
        node = node.value
    if type(node) is not cst.Name or node.lpar:
        return ""
    parts.append(node.value)
    return ".".join(reversed(parts))


def is_docstring(statement: cst.CSTNode) -> bool:
    """Whether `statement` is a string and nothing else."""
    return (
        isinstance(statement, cst.SimpleStatementLine)
        and isinstance(statement.body[0], cst.Expr)
        and isinstance(statement.body[0].value, cst.SimpleString | cst.ConcatenatedString)
    )


def dotted(node: cst.CSTNode) -> str:
    """Return the text of a name with attributes, as `args.device`; empty for anything else."""
    if type(node) is cst.Name:
        return node.value
    if type(node) is cst.Attribute:
        above = dotted(node.value)
        return above and f"{above}.{node.attr.value}"
    return ""


def container(node: cst.BaseExpression) -> cst.BaseExpression:
    """Return the container of an item: `self.nets` of `self.nets[i]`; another expression unchanged."""
    while isinstance(node, cst.Subscript):
        node = node.value
    return node


def last_part(node: cst.CSTNode) -> str:
    """Return `c` of `a.b.c`, and of `c`; empty for anything else."""
    if type(node) is cst.Attribute:
        return node.attr.value
    return node.value if type(node) is cst.Name else ""


def base_name(node: cst.CSTNode) -> str | None:
    """Return the dotted name at the root of an expression, or None: `x.y` of `x.y[0].z()`."""
    while not is_dotted_name(node):
        if isinstance(node, cst.Subscript | cst.Attribute):
            node = node.value
        elif isinstance(node, cst.Call):
            node = node.func.value if isinstance(node.func, cst.Attribute) else node.func
        else:
            return None
    return get_full_name_for_node(node)


def compared_with_type(above: cst.CSTNode | None, further: cst.CSTNode | None) -> bool:
    """Whether a part of `above` is compared with the type of an object: `type(x) is A`, `A == x.__class__`.

    Args:
        above: the node that holds the part.
        further: the node that holds `above`.
    """
    if isinstance(above, cst.ComparisonTarget):
        return isinstance(further, cst.Comparison) and _is_type(further.left)
    if isinstance(above, cst.Comparison):
        return any(_is_type(target.comparator) for target in above.comparisons)
    return False


def _is_type(value: cst.BaseExpression) -> bool:
    if isinstance(value, cst.Call):
        return code(value.func) == "type" and len(value.args) == 1
    return isinstance(value, cst.Attribute) and value.attr.value == "__class__"

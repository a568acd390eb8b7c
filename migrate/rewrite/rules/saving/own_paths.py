"""Whether the path of a save contains the rank, so that every replica writes its own file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from migrate.reading.values.saved import arguments
from migrate.syntax.tree import bind, code, last_part, nodes_of, targets
from migrate.syntax.walk import children

if TYPE_CHECKING:
    from migrate.rewrite.workspace import Workspace

DEPTH = 4  # so many names are followed, one from another
# Calls that put what they are given into their result.
MAKE_PATHS = frozenset({"Path", "format", "int", "join", "joinpath", "str", "with_suffix", "zfill"})
INDEX = cst.Name | cst.Attribute | cst.Call | cst.Subscript


def names_replica(call: cst.Call, context: Workspace) -> bool:
    """Whether the path of the save `call` has the rank in it, wherever it comes from."""
    return _answers(call, context) == {True}


def names_replica_at_times(call: cst.Call, context: Workspace) -> bool:
    """Whether the path has the rank in it on one way to the save, and on another has not."""
    return _answers(call, context) == {True, False}


def ways_of_path(path: cst.BaseExpression, context: Workspace) -> set[bool]:
    """Return whether `path` has the rank in it, for each of the ways in which it may be made."""
    return _of_value(path, context, DEPTH)


def key_in_path(call: cst.Call, context: Workspace) -> str | None:
    """Return what the path of the save `call` takes from a loop over a mapping, or None.

    The keys may be others on each replica: the experts that it holds, its part of the layers.
    """
    path = (arguments(call, context) or {}).get("f")
    if path is None:
        return None
    in_path = {name.value for name in context.below(path.value, cst.Name)}
    for above in context.ancestors(call):
        if isinstance(above, cst.FunctionDef):
            return None
        if not isinstance(above, cst.For) or not isinstance(above.iter, cst.Call):
            continue
        target = (
            above.target.elements[0].value if isinstance(above.target, cst.Tuple) else above.target
        )
        gives_keys = last_part(above.iter.func) == ("keys" if target is above.target else "items")
        if gives_keys and isinstance(target, cst.Name) and target.value in in_path:
            return target.value
    return None


def _answers(call: cst.Call, context: Workspace) -> set[bool]:
    path = (arguments(call, context) or {}).get("f")
    return set() if path is None else ways_of_path(path.value, context)


def _of_value(value: cst.BaseExpression, context: Workspace, depth: int) -> set[bool]:
    """Return whether `value` has the rank in it, for each of the ways in which it may be made."""
    leaves = list(_leaves(value, context))
    if any(context.guards.is_index(node) for node in leaves):
        return {True}
    all_answers = {False}
    if any(isinstance(node, cst.Call) for node in leaves):
        all_answers.add(True)
    for name in leaves if depth else ():
        if isinstance(name, cst.Name | cst.Attribute):
            ways = [
                _of_value(expression, context, depth - 1) for expression in _values(name, context)
            ]
            answers = set().union(*ways)
            if answers == {True}:
                return {True}
            all_answers |= answers
    return all_answers


def _leaves(value: cst.BaseExpression, context: Workspace) -> Iterator[cst.BaseExpression]:
    """Yield what `value` is made of as a text, and calls of other files that are given the rank.

    Not what a condition asks, nor what other calls are given.
    """
    stack: list[cst.CSTNode] = [value]
    seen: set[int] = set()  # functions
    while stack:
        node = stack.pop()
        named = isinstance(node, cst.Name | cst.Attribute)
        if isinstance(node, INDEX) and (named or context.guards.is_index(node)):
            yield node
        elif isinstance(node, cst.Call):
            method = node.func if isinstance(node.func, cst.Attribute) else None
            last = method.attr.value if method is not None else code(node.func)
            if last in MAKE_PATHS:
                stack += [*(arg.value for arg in node.args), *([method.value] if method else [])]
            elif functions := context.called(node):
                for function in functions:
                    returned = (
                        nodes_of(function.body, cst.Return) if id(function) not in seen else ()
                    )
                    stack += [
                        statement.value for statement in returned if statement.value is not None
                    ]
                    seen.add(id(function))
            elif any(context.guards.is_index(arg.value) for arg in node.args):
                yield node  # of another file: what it makes of the rank is not to be seen
        elif isinstance(node, cst.IfExp):
            stack += [node.body, node.orelse]
        elif not isinstance(node, cst.Comparison):
            stack += children(node)


def _values(name: cst.Name | cst.Attribute, context: Workspace) -> Iterator[cst.BaseExpression]:
    """Yield what `name` may be where it is used: what was last assigned, or what callers pass."""
    if isinstance(name, cst.Attribute):
        for target, value in context.attributes.get(name.attr.value, ()):
            if value is not None and code(target) == code(name):
                yield value
        return
    below: cst.CSTNode = name
    added: list[cst.BaseExpression] = []
    for above in context.ancestors(name):
        if isinstance(above, cst.IndentedBlock | cst.Module):
            before = above.body[: next(i for i, s in enumerate(above.body) if s is below)]
            for statement in reversed(before):
                more = _added(statement, name.value)
                if more is not None:
                    added.append(more)
                    continue
                for nested in context.below(statement, cst.AugAssign):
                    if code(nested.target) == name.value:
                        yield nested.value  # on one way only
                assigned = list(_assigned(statement, name.value, context))
                if assigned:
                    yield from (_with(expression, added) for expression in assigned)
                    return
        if isinstance(above, cst.FunctionDef):
            passed = list(_passed(name, above, context))
            yield from (_with(expression, added) for expression in passed or added[:1])
            return
        below = above


def _added(statement: cst.CSTNode, name: str) -> cst.BaseExpression | None:
    """Return what is added in `name += f"_{rank}"`."""
    small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    if isinstance(small, cst.AugAssign) and code(small.target) == name:
        return small.value
    return None


def _with(value: cst.BaseExpression, added: list[cst.BaseExpression]) -> cst.BaseExpression:
    for part in added:
        value = cst.BinaryOperation(value, cst.Add(), part)
    return value


def _assigned(
    statement: cst.CSTNode, name: str, context: Workspace
) -> Iterator[cst.BaseExpression]:
    if isinstance(statement, cst.FunctionDef | cst.ClassDef):
        return
    for target in targets(statement):
        assign = context.parent(context.parent(target))
        if isinstance(target, cst.Name) and target.value == name and isinstance(assign, cst.Assign):
            yield assign.value


def _passed(
    name: cst.Name, function: cst.FunctionDef, context: Workspace
) -> Iterator[cst.BaseExpression]:
    """Yield what the script passes for the parameter `name` of `function`."""
    names = [parameter.name.value for parameter in function.params.params]
    names = names[names[:1] == ["self"] :]
    for mention in context.references(function.name.value):
        above = context.parent(mention)
        called = above if isinstance(above, cst.Attribute) and above.attr is mention else mention
        call = context.parent(called)
        if isinstance(call, cst.Call) and call.func is called:
            arg = (bind(call, names) or {}).get(name.value)
            if arg is not None and context.qualified_name(call.func) is None:
                yield arg.value

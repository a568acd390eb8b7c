"""Code that all replicas may run: statements that only assign names, and tests with equal results."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence

import libcst as cst

from migrate.catalogue.words import COUNTERS, OPTIONS
from migrate.syntax.tree import (
    code,
    is_attribute_of_self,
    is_docstring,
    last_part,
    nodes_of,
    targets,
    used,
)
from migrate.syntax.walk import children

# Tests of an object's type, with the same result on all replicas.
OF_KIND = frozenset({"hasattr", "isinstance"})
# Calls that change nothing, by the last part of their name.
PURE_CALLS = frozenset(
    {
        "abs",
        "asdict",
        "bool",
        "dict",
        "dirname",
        "float",
        "format",
        "get",
        "getattr",
        "hasattr",
        "int",
        "isinstance",
        "items",
        "join",
        "joinpath",
        "len",
        "list",
        "lower",
        "max",
        "min",
        "Path",
        "round",
        "state_dict",
        "str",
        "tuple",
        "unwrap_model",
        "vars",
        "with_suffix",
        "zfill",
    }
)


def same_everywhere(test: cst.BaseExpression) -> bool:
    """Whether `test` plainly has the same result on all replicas: it reads counters and options.

    Tests of an object's type count too. A comparison of a metric does not: `accuracy > best` may differ if
    the metric is not reduced.
    """
    for call in nodes_of(test, cst.Call):
        if code(call.func) not in ("len", "int", "bool", *OF_KIND):
            return False
    return all(_is_counter(leaf) for leaf in leaves(test))


def is_pure(statement: cst.CSTNode) -> bool:
    """Whether `statement` only assigns values to names or to entries of containers, or imports.

    Imports of the standard library count: other modules may do anything while Python reads them.
    """
    if isinstance(statement, cst.If):
        branches: list[cst.CSTNode] = [*statement.body.body]
        if isinstance(statement.orelse, cst.Else):
            branches.extend(statement.orelse.body.body)
        elif statement.orelse is not None:
            return False
        return same_everywhere(statement.test) and all(is_pure(s) for s in branches)
    if isinstance(statement, cst.SimpleStatementLine):
        return is_docstring(statement) or all(is_pure(small) for small in statement.body)
    if isinstance(statement, cst.Pass):
        return True
    if isinstance(statement, cst.Import | cst.ImportFrom):
        return all(name in sys.stdlib_module_names for name in _packages(statement))
    if not isinstance(statement, cst.Assign | cst.AnnAssign):
        return False
    places = all(
        isinstance(target.value if isinstance(target, cst.Subscript) else target, cst.Name)
        for target in targets(statement)
    )
    return places and all(
        last_part(call.func) in PURE_CALLS for call in nodes_of(statement, cst.Call)
    )


def _packages(statement: cst.Import | cst.ImportFrom) -> list[str]:
    """Return the packages that `statement` imports; "" for a relative import."""
    if isinstance(statement, cst.Import):
        return [alias.evaluated_name.partition(".")[0] for alias in statement.names]
    if statement.relative or statement.module is None:
        return [""]
    return [code(statement.module).partition(".")[0]]


def bound_with_effects(
    body: Sequence[cst.CSTNode], wanted: Callable[[cst.CSTNode], bool]
) -> str | None:
    """Return a name that all replicas would need and that only a statement with effects binds.

    Args:
        body: the statements of a function. The wanted and the pure ones run on all replicas, the others on
            the first.
        wanted: predicate: whether a statement has to run on all replicas.
    """
    needed: set[str] = set()
    for statement in reversed(body):
        if wanted(statement) or (is_pure(statement) and not is_docstring(statement)):
            needed |= {code(name) for name in used(statement)}
        elif missing := sorted(needed & set(_bound(statement))):
            return missing[0]
    return None


def _bound(statement: cst.CSTNode) -> Iterator[str]:
    """Yield the names, and the attributes of `self`, that `statement` binds on at least one path."""
    for target in targets(statement):
        if isinstance(target, cst.Name) or is_attribute_of_self(target):
            yield code(target)
    for alias in nodes_of(statement, cst.ImportAlias):
        yield alias.evaluated_alias or alias.evaluated_name.partition(".")[0]
    if isinstance(statement, cst.FunctionDef | cst.ClassDef):
        yield statement.name.value


def leaves(test: cst.BaseExpression) -> list[cst.Name | cst.Attribute]:
    """Return the dotted names that `test` reads, without those of the functions that it calls."""
    nodes: list[cst.Name | cst.Attribute] = []
    stack: list[cst.CSTNode] = [test]
    while stack:
        node = stack.pop()
        if isinstance(node, cst.Name | cst.Attribute):
            nodes.append(node)
        elif isinstance(node, cst.Call):
            stack.extend(arg.value for arg in node.args if code(node.func) not in OF_KIND)
        else:
            stack.extend(children(node))
    return nodes


def _is_counter(leaf: cst.Name | cst.Attribute) -> bool:
    last = leaf.attr.value if isinstance(leaf, cst.Attribute) else leaf.value
    root = code(leaf).split(".")[0]
    return root in OPTIONS or last in ("None", "True", "False") or bool(COUNTERS.fullmatch(last))

"""Inputs that a caller may leave out, in the source: what is computed of them is None where they are None."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

from converters.graph.expression import Hole, code
from converters.graph.ir import Ref
from converters.graph.writing.forms.form import is_none
from converters.graph.writing.holes import fill
from converters.graph.writing.original.comments import commented, of


class _Absent:
    """Content of a hole for the test whether the inputs of a choice's value are left out."""


def choice(value: ast.expr, other: ast.expr) -> ast.expr:
    """An expression for a choice; `guard` says what it asks."""
    return ast.IfExp(Hole(_Absent()), other, value)


def is_choice(value: ast.AST) -> bool:
    """Whether an expression is a choice that is not guarded yet."""
    return isinstance(value, ast.IfExp) and _asks(value.test)


def _asks(test: ast.AST) -> bool:
    return isinstance(test, Hole) and isinstance(test.value, _Absent)


def spread(mask: Any, truths: bool) -> ast.expr:
    """A mask of rows and keys, for all heads and queries."""
    booleans = code("{m}", m=mask) if truths else code("{m}.astype(bool)", m=mask)
    return code("{m}[:, None, None]", m=booleans)


def guard(
    statements: Sequence[Any], placed: Mapping[int, ast.expr], maybe: Set[int]
) -> dict[int, ast.expr]:
    """Have statements compute nothing of what may be None where it is None.

    Args:
        statements: those of a forward.
        placed: expressions that went into others, by the tensor that they are.
        maybe: tensors that may be None.

    Returns:
        These expressions, guarded as well.
    """
    choices = _Choices(maybe)
    for statement in statements:
        outs = [out for out in statement.outs if out >= 0]
        statement.value = choices.visit(fill(statement.value, lambda hole: hole))
        if outs and set(outs) <= maybe and not is_choice(statement.value):
            test = _test(_needed(statement.value, maybe))
            if test is not None:
                none: ast.expr = ast.Constant(None)
                if not statement.single:
                    none = ast.Tuple([ast.Constant(None) for _ in statement.outs], ast.Load())
                statement.value = ast.IfExp(test, none, statement.value)
    return {
        number: choices.visit(fill(expression, lambda hole: hole))
        for number, expression in placed.items()
    }


class _Choices(ast.NodeTransformer):
    """Fills in what the choices ask."""

    def __init__(self, maybe: Set[int]) -> None:
        self.maybe = maybe

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        self.generic_visit(node)
        if _asks(node.test):
            test = _test(_needed(node.orelse, self.maybe))
            if test is None:
                raise AssertionError("a choice that asks for nothing")
            node.test = test
        return node


def _needed(value: ast.AST, maybe: Set[int]) -> list[int]:
    """The tensors that may be None, and that an expression cannot do without."""
    if isinstance(value, ast.IfExp):  # a choice asks by itself
        return []
    numbers = [value.value.id] if isinstance(value, Hole) and isinstance(value.value, Ref) else []
    for child in ast.iter_child_nodes(value) if not isinstance(value, Hole) else ():
        numbers += _needed(child, maybe)
    return [number for number in dict.fromkeys(numbers) if number in maybe]


def _test(numbers: Iterable[int]) -> ast.expr | None:
    tests: list[ast.expr] = [code("{x} is None", x=Hole(Ref(number))) for number in numbers]
    if not tests:
        return None
    return tests[0] if len(tests) == 1 else ast.BoolOp(ast.Or(), tests)


# As statements, once loops and forms are found.


def tidied(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Statements with `x = None if x is None else f(x)` as `if x is not None: …`; neighbors are one."""
    branches: list[ast.stmt] = []
    for statement in body:
        if isinstance(statement, ast.For | ast.If):
            statement.body, statement.orelse = tidied(statement.body), tidied(statement.orelse)
        new = _as_branch(statement)
        last = branches[-1] if branches else None
        if isinstance(new, ast.If) and new is not statement and isinstance(last, ast.If):
            same = ast.dump(last.test) == ast.dump(new.test) and not last.orelse
            if same and getattr(last, "of_option", False):
                last.body += new.body
                continue
        branches.append(new)
    return branches


def _as_branch(statement: ast.stmt) -> ast.stmt:
    match statement:
        case ast.Assign(
            targets=[ast.Name(id=name)],
            value=ast.IfExp(
                test=ast.Compare(left=ast.Name(id=asked), ops=[ast.Is()]), body=other, orelse=value
            ),
        ):
            test, there = "is None", other
            stays = isinstance(other, ast.Name) and other.id == name
            if stays or (is_none(other) and asked == name):
                test, there = "is not None", value
            elif not (isinstance(value, ast.Name) and value.id == name):
                return statement
            assign = ast.Assign(statement.targets, there)
            branch = ast.If(code(f"{asked} {test}"), [assign], [])
            branch.of_option = True  # type: ignore[attr-defined]
            return commented(branch, of(statement))
    return statement


def paddings_named(
    body: Sequence[ast.stmt], result: ast.expr, arguments: Iterable[str]
) -> tuple[list[ast.stmt], ast.expr]:
    """Statements and a result in which the masks of padding for all heads and queries are called that.

    Their line in the original is one of many that only hand them on.
    """
    stored: dict[str, int] = {}
    taken = {*arguments}
    for tree in (*body, result):
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                taken.add(node.id)
                stored[node.id] = stored.get(node.id, 0) + isinstance(node.ctx, ast.Store)
    names: dict[str, str] = {}
    for statement in body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.IfExp(orelse=value)) if (
                stored[name] == 1 and name not in arguments and _is_spread(value)
            ):
                number, wanted = 1, "padding_mask"
                while wanted in taken:
                    number += 1
                    wanted = f"padding_mask_{number}"
                names[name] = wanted
                taken.add(wanted)
    change = _Renamed(names)
    return [change.visit(statement) for statement in body], change.visit(result)


def _is_spread(value: ast.expr) -> bool:
    return isinstance(value, ast.Subscript) and ast.unparse(value).endswith("[:, None, None]")


class _Renamed(ast.NodeTransformer):
    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:
        node.id = self.names.get(node.id, node.id)
        return node

"""Functions of the original that do nothing but call another one: the call of that one stands for theirs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from converters.graph.writing.holes import fill


def without_forwarding(
    functions: Sequence[ast.FunctionDef], callers: Sequence[ast.AST]
) -> tuple[list[ast.FunctionDef], list[ast.AST]]:
    """The functions without those that only call another, and the trees that call them.

    Where nothing else calls the other one, and the callers' own code uses the name of the first, that
    name stays.
    """
    kept, trees = list(functions), list(callers)
    while pair := _pair(kept, [*kept, *trees]):
        outer, inner, order = pair
        kept.remove(outer)
        if any(_calls(trees, outer.name)) and not any(_calls([*kept, *trees], inner.name)):
            kept[kept.index(inner)] = _renamed(inner, outer, order)
            continue
        change = _Replaced(outer.name, inner.name, order)
        kept = [change.visit(function) for function in kept]
        trees = [change.visit(tree) for tree in trees]
    return _numbered(kept, trees)


def _pair(
    functions: Sequence[ast.FunctionDef], trees: Sequence[ast.AST]
) -> tuple[ast.FunctionDef, ast.FunctionDef, list[int]] | None:
    """A function that only calls another, that one, and the order of what it gives it."""
    named = {function.name: function for function in functions}
    for outer in functions:
        call = _inner(outer)
        if call is None or not isinstance(call.func, ast.Name):
            continue
        inner = named.get(call.func.id)
        if inner is None or inner is outer:
            continue
        order = _order(outer, inner, call, trees)
        if order is not None:
            return outer, inner, order
    return None


def _statements(function: ast.FunctionDef) -> list[ast.stmt]:
    body = function.body
    return body[1:] if ast.get_docstring(function) is not None else body


def _inner(function: ast.FunctionDef) -> ast.Call | None:
    """The call that is all that a function does."""
    match _statements(function):
        case [ast.Return(value=ast.Call(func=ast.Name()) as call)]:
            return call
        case [
            ast.Assign(targets=[target], value=ast.Call(func=ast.Name()) as call),
            ast.Return(value=value),
        ] if value is not None and _names(target) == _names(value) != []:
            return call
    return None


def _names(tree: ast.expr) -> list[str]:
    match tree:
        case ast.Name(id=name):
            return [name]
        case ast.Tuple(elts=parts) if all(isinstance(part, ast.Name) for part in parts):
            return [name for part in parts for name in _names(part)]
    return []


def _order(
    function: ast.FunctionDef, inner: ast.FunctionDef, call: ast.Call, trees: Sequence[ast.AST]
) -> list[int] | None:
    """Index of the function's argument for each argument of the inner call; None if the function
    does more.
    """
    if call.keywords:
        return None
    arguments = [argument.arg for argument in function.args.args]
    passed = [argument.id if isinstance(argument, ast.Name) else "" for argument in call.args]
    plain = sorted(passed) == sorted(arguments) and len(inner.args.args) == len(passed)
    called = [*_calls(trees, function.name), *_calls(trees, inner.name)]
    whole = all(
        not other_call.keywords
        and len(other_call.args) == len(passed)
        and not any(isinstance(each, ast.Starred) for each in other_call.args)
        for other_call in called
    )
    read = sum(
        isinstance(node, ast.Name) and node.id == function.name
        for tree in trees
        for node in ast.walk(tree)
    )
    called_only = read == sum(1 for _ in _calls(trees, function.name)) > 0
    return [arguments.index(name) for name in passed] if plain and whole and called_only else None


def _calls(trees: Sequence[ast.AST], name: str) -> Iterator[ast.Call]:
    for tree in trees:
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == name
            ):
                yield node


def _renamed(
    inner: ast.FunctionDef, outer: ast.FunctionDef, order: Sequence[int]
) -> ast.FunctionDef:
    """The inner function under the name of the outer one, with its arguments in that one's order."""
    merged: ast.FunctionDef = fill(inner, lambda hole: hole)
    merged.name = outer.name
    merged.args.args = [merged.args.args[order.index(place)] for place in range(len(order))]
    doc = ast.get_docstring(outer, clean=False)
    if doc is not None:
        merged.body = [ast.Expr(ast.Constant(doc)), *_statements(merged)]
    return merged


class _Replaced(ast.NodeTransformer):
    """Calls of one function become calls of another, with the arguments in its order."""

    def __init__(self, outer: str, inner: str, order: Sequence[int]) -> None:
        self.outer, self.inner, self.order = outer, inner, order

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        if not (isinstance(node.func, ast.Name) and node.func.id == self.outer):
            return node
        passed = [node.args[place] for place in self.order]
        return ast.Call(ast.Name(self.inner, ast.Load()), passed, [])


class _RenamedCalls(ast.NodeTransformer):
    def __init__(self, names: dict[str, str]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self.names.get(node.id, node.id), node.ctx)


def _numbered(
    functions: Sequence[ast.FunctionDef], trees: Sequence[ast.AST]
) -> tuple[list[ast.FunctionDef], list[ast.AST]]:
    """Functions without the number that told them from one that is gone."""
    taken = {
        name
        for tree in (*functions, *trees)
        for node in ast.walk(tree)
        for name in (getattr(node, "id", ""), getattr(node, "arg", ""))
    } | {function.name for function in functions}
    names: dict[str, str] = {}
    for function in functions:
        plain = re.sub(r"_\d+$", "", function.name)
        if plain not in taken:
            taken.add(plain)
            names[function.name] = plain
    change = _RenamedCalls(names)
    numbered = []
    for function in functions:
        function = change.visit(function)
        function.name = names.get(function.name, function.name)
        numbered.append(function)
    return numbered, [change.visit(tree) for tree in trees]

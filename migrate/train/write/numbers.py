"""Functions of a script that compute with numbers alone: a schedule, a weight of a loss."""

from __future__ import annotations

import ast
import textwrap

from migrate.train.slice.text import ScriptText, free_names
from migrate.train.write.functions import head, parameter_names

# Python's own functions of numbers, and the module that has more.
_OF_NUMBERS, _MATH = ("abs", "bool", "float", "int", "max", "min", "pow", "round"), "math"


def function_of_numbers(script: ScriptText, node: ast.FunctionDef) -> str:
    """A function as the script has it, if it computes with numbers alone; "" if it does more.

    It calls nothing but functions of numbers, and changes nothing outside of itself.
    """
    names = {
        alias.asname or alias.name
        for statement in script.tree.body
        if isinstance(statement, ast.Import)
        for alias in statement.names
        if alias.name == _MATH
    }
    free, parameters = free_names(node), set(parameter_names(node))
    read = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    # A stub reads no parameter, and tells nothing of what it takes.
    if free - names - set(_OF_NUMBERS) or parameters - read:
        return ""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Call):
            function = inner.func
            name = getattr(function, "value", function)
            if not isinstance(name, ast.Name) or name.id in parameters or name.id not in free:
                return ""
        elif isinstance(inner, ast.AugAssign) and getattr(inner.target, "id", "") in parameters:
            return ""  # of an array, it would change the caller's
        elif isinstance(inner, ast.Attribute | ast.Subscript) and not isinstance(
            inner.ctx, ast.Load
        ):
            return ""
    if not any(isinstance(n, ast.Return) and n.value for n in ast.walk(node)):
        return ""
    twin = ast.parse(ast.unparse(node)).body[0]
    assert isinstance(twin, ast.FunctionDef)
    body = twin.body[1:] if ast.get_docstring(twin) else twin.body
    imports = [f"import {_MATH}" if n == _MATH else f"import {_MATH} as {n}" for n in free & names]
    lines = textwrap.indent("\n".join([*imports, *map(ast.unparse, body)]), "    ")
    return f'{head(node)}\n    """`{node.name}` as the script has it."""\n{lines}\n'

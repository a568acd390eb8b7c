"""Objects whose generators give the items of their argument: `for batch in logger.log_every(loader)`."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from migrate.train.slice.elsewhere import definition, file_of_script
from migrate.train.slice.statements import every_statement, own_nodes
from migrate.train.slice.text import FunctionNode, ScriptText, stores

_LEAVES = ast.Break | ast.Continue | ast.Return | ast.Raise


def passes_items(
    script: ScriptText, body: Sequence[ast.stmt], kept: Iterable[ast.stmt], name: str
) -> bool:
    """Whether kept statements use an object only by generators of its class that pass items on.

    What else is done with the object changes no item then: `logger.update(loss=loss.item())`.

    Args:
        script: the script.
        body: statements of the function that binds the name.
        kept: the kept statements.
        name: name of the object.
    """
    bound = [s for top in body for s in every_statement(top) if name in stores(s)[0]]
    call = bound[0].value if len(bound) == 1 and isinstance(bound[0], ast.Assign) else None
    if not isinstance(call, ast.Call):
        return False
    of_class, _ = definition(file_of_script(script), call.func)
    if not isinstance(of_class, ast.ClassDef):
        return False
    methods = {m.name: m for m in of_class.body if isinstance(m, FunctionNode)}
    nodes = [node for statement in kept for node in own_nodes(statement)]
    used = [n for n in nodes if isinstance(n, ast.Attribute) and _is_name(n.value, name)]
    read = [n for n in nodes if _is_name(n, name) and isinstance(getattr(n, "ctx", None), ast.Load)]
    return (
        bool(used)
        and len(read) == len(used)
        and all(node.attr in methods and _passes(methods[node.attr]) for node in used)
    )


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _passes(function: FunctionNode) -> bool:
    """Whether a generator yields each item of a parameter, whatever its object holds."""
    yields = [n for n in ast.walk(function) if isinstance(n, ast.Yield | ast.YieldFrom)]
    inner = [n for n in ast.walk(function) if isinstance(n, ast.stmt) and n is not function]
    if len(yields) != 1 or any(isinstance(statement, _LEAVES) for statement in inner):
        return False
    own = {a.arg for a in function.args.args}.difference(*(stores(s)[0] for s in inner))
    if isinstance(yields[0], ast.YieldFrom):
        return isinstance(yields[0].value, ast.Name) and yields[0].value.id in own
    for loop in function.body:
        if isinstance(loop, ast.For) and any(
            isinstance(s, ast.Expr) and s.value is yields[0] for s in loop.body
        ):
            return (
                isinstance(loop.target, ast.Name)
                and _is_name(yields[0].value or loop, loop.target.id)
                and isinstance(loop.iter, ast.Name)
                and loop.iter.id in own
                and not any(loop.target.id in stores(s)[0] for s in loop.body)
            )
    return False

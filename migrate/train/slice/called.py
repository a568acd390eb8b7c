"""The function that a call of the script runs: what binds its name decides, else its spelling."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator

from migrate.model.calls.rank_tests import last_part
from migrate.train.slice.text import FunctionNode


def is_call_of(tree: ast.Module, function: ast.expr, dotted: str) -> bool:
    """Whether a called expression is a function of a library, or a builtin function ("builtins.exec").

    Args:
        tree: the script.
        function: the expression that is called.
        dotted: the function.
    """
    name, package = dotted.rpartition(".")[2], dotted.partition(".")[0]
    if last_part(function) != name:
        return False
    parts = _parts(function)
    bindings = set(_bindings(tree, parts[0])) if parts else {""}
    if package == builtins.__name__:
        return parts == [name] and not bindings
    if imported := imported_as(tree, function):  # also by another path: torch re-exports
        return any(path.startswith(f"{package}.") for path in imported)
    return len(parts) != 1 or not any(_defines(node, name) for node in ast.walk(tree))


def imported_as(tree: ast.Module, function: ast.expr) -> set[str]:
    """Return the paths of what an expression names by an import: "torch.distributed.all_reduce"."""
    parts = _parts(function)
    paths = set(_bindings(tree, parts[0])) - {""} if parts else set()
    return {".".join([path, *parts[1:]]) for path in paths}


def only_imported_as(tree: ast.Module, function: ast.expr) -> str:
    """Return the path of what an expression names by an import, if nothing else binds its name; else ""."""
    parts = _parts(function)
    paths = set(_bindings(tree, parts[0])) if parts else set()
    return ".".join([*paths, *parts[1:]]) if len(paths) == 1 and paths != {""} else ""


def _parts(function: ast.expr) -> list[str]:
    """["dist", "init_process_group"]; empty for what is no chain of names."""
    parts: list[str] = []
    node = function
    while isinstance(node, ast.Attribute):
        parts.insert(0, node.attr)
        node = node.value
    return [node.id, *parts] if isinstance(node, ast.Name) else []


def _bindings(tree: ast.Module, name: str) -> Iterator[str]:
    """Paths of what a name is imported as; "" for what else binds it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if (alias.asname or alias.name).partition(".")[0] == name:
                    yield alias.name if alias.asname else name
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    yield f"{'.' * node.level}{node.module or ''}.{alias.name}"
        elif (
            _defines(node, name)
            or (isinstance(node, ast.arg) and node.arg == name)
            or (isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store))
        ):
            yield ""


def _defines(node: ast.AST, name: str) -> bool:
    return isinstance(node, FunctionNode | ast.ClassDef) and node.name == name

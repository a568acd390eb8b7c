"""Files that ask for the rank while they are imported, and who imports them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from migrate.reading.calls.analysis import Analysis
from migrate.reading.values.words import CLUSTER, RANKS

NAMES = RANKS | CLUSTER.keys()


@lru_cache(maxsize=2)
def importing_ranks(analysis: Analysis) -> frozenset[Path]:
    """Return the files that import, when they are read, a file that asks the environment for the rank.

    A process that `torch_xla.launch` starts has imported them before its rank is in the environment.
    """
    modules = {scope.module.path: scope.module for scope in analysis.scopes.values()}
    early = {path: list(early_nodes(module.tree)) for path, module in modules.items()}
    asking = {
        path
        for path, module in modules.items()
        if b"environ" in module.data or b"getenv" in module.data
        if _asks(early[path], module.tree)
    }
    if not asking:
        return frozenset()
    imports = {
        path: set(analysis.project.imported_by(path, nodes)) - {path}
        for path, nodes in early.items()
    }
    found: set[Path] = set()
    before = -1
    while before < len(found):
        before = len(found)
        found |= {path for path, files in imports.items() if files & (asking | found)}
    return frozenset(found)


def early_nodes(tree: ast.AST, *, guard: bool = False) -> Iterator[ast.AST]:
    """Yield the nodes that are run while a file is imported, or while the body of a function is.

    Args:
        tree: the file, or the definition of the function.
        guard: whether the file is the script that is run: its main guard counts then.
    """
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and _is_apart(node.test, guard):
            continue
        yield node
        yield from early_nodes(node, guard=guard)


def _is_apart(test: ast.expr, guard: bool) -> bool:
    """Whether `test` holds in the script alone, or for a checker of types."""
    text = ast.unparse(test)
    return ("__name__" in text and not guard) or text.endswith("TYPE_CHECKING")


def _asks(early: list[ast.AST], tree: ast.AST) -> bool:
    """Whether nodes that are run at import ask for the rank, or call a function of the file that does."""
    asking = {
        node.name
        for node in ast.iter_child_nodes(tree)
        if isinstance(node, ast.FunctionDef) and any(map(_reads, ast.walk(node)))
    }
    return any(
        _reads(node)
        or (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in asking
        )
        for node in early
    )


def _reads(node: ast.AST) -> bool:
    """Whether `node` reads a variable that torchrun sets: by an item, a method, or `in`."""
    match node:
        case ast.Subscript(value=of, slice=ast.Constant(value=name), ctx=ast.Load()):
            return name in NAMES and _is_environment(of)
        case ast.Call(
            func=ast.Attribute(value=of, attr="get"), args=[ast.Constant(value=name), *_]
        ):
            return name in NAMES and _is_environment(of)
        case ast.Call(func=asked, args=[ast.Constant(value=name), *_]):
            return name in NAMES and ast.unparse(asked).rpartition(".")[2] == "getenv"
        case ast.Compare(left=ast.Constant(value=name), comparators=[of]):
            return name in NAMES and _is_environment(of)
    return False


def _is_environment(node: ast.expr) -> bool:
    return ast.unparse(node).rpartition(".")[2] == "environ"

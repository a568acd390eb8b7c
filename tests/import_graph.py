"""Which file of a package imports which, and the circles among them; for typing and lazily counts too."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path


def imports(package: Path, root: Path | None = None) -> dict[str, set[str]]:
    """Module → the modules of the same package that it imports, at whatever depth of its code.

    Args:
        package: a folder.
        root: where the names of modules begin; None: beside the package.
    """
    found = _found(package, root or package.parent)
    return {
        name: {one if one in found else of for of, one in pairs} & found.keys() - {name}
        for name, pairs in found.items()
    }


def imported(package: Path) -> dict[str, set[str]]:
    """Module → the names that it imports, from whatever package: of `from a import b` a.b."""
    found = _found(package, package.parent)
    return {name: {one for _, one in pairs} for name, pairs in found.items()}


def circles(imports: Mapping[str, set[str]]) -> list[list[str]]:
    """The groups of modules in which each leads to each other by its imports (Tarjan's components)."""
    return sorted(sorted(group) for group in _components(imports) if len(group) > 1)


@cache
def _found(package: Path, root: Path) -> dict[str, list[tuple[str, str]]]:
    found = {}
    for path in package.rglob("*.py"):
        name = _name(path, root)
        folder = name if path.name == "__init__.py" else name.rpartition(".")[0]
        found[name] = list(_imported(ast.parse(path.read_bytes()), folder))
    return found


def _name(path: Path, root: Path) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def _imported(tree: ast.AST, folder: str) -> Iterator[tuple[str, str]]:
    """What is imported; of `from a import b` a and a.b, which may be a module of its own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = folder.split(".")[: folder.count(".") + 2 - node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from ((base, f"{base}.{alias.name}") for alias in node.names)


def _components(graph: Mapping[str, set[str]]) -> list[list[str]]:
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    open_: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        order[node] = lowest[node] = len(order)
        open_.append(node)
        for other in sorted(graph[node]):
            if other not in order:
                visit(other)
            if other in open_:
                lowest[node] = min(lowest[node], lowest[other])
        if lowest[node] == order[node]:
            at = open_.index(node)
            found.append(open_[at:])
            del open_[at:]

    for node in sorted(graph):
        if node not in order:
            visit(node)
    return found

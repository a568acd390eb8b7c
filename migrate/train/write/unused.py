"""Private helpers of a file that nothing in it uses."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def without_unused(source: str) -> str:
    """Remove private functions, classes and constants of a module that nothing else of it names.

    Args:
        source: the file. No other file imports its private names.
    """
    while True:
        tree = ast.parse(source)
        unused = [node for node in tree.body if _is_unused(node, tree)]
        if not unused:
            return source
        lines = source.splitlines(keepends=True)
        for node in reversed(unused):
            first, last = _first_line(node, lines), node.end_lineno or node.lineno
            while last < len(lines) and not lines[last].strip():
                last += 1  # the blank lines before what follows: those above it stay
            del lines[first - 1 : last]
        source = "".join(lines).rstrip("\n") + "\n"


def _is_unused(node: ast.stmt, tree: ast.Module) -> bool:
    names = set(_bound(node))
    if not names or not all(name.startswith("_") and not name.startswith("__") for name in names):
        return False
    return not any(
        (isinstance(inner, ast.Name) and inner.id in names and isinstance(inner.ctx, ast.Load))
        or (isinstance(inner, ast.Constant) and inner.value in names)  # in `__all__`
        for other in tree.body
        if other is not node
        for inner in ast.walk(other)
    )


def _bound(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Assign) and all(isinstance(t, ast.Name) for t in node.targets):
        yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def _first_line(node: ast.stmt, lines: list[str]) -> int:
    """The first line of a definition, with its decorators and the comment right above it."""
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
    while first > 1 and lines[first - 2].startswith("#"):
        first -= 1
    return first

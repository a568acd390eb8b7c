"""Modules of the script's folder that the files of the program would hide."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from pathlib import Path


def hidden_module(source: str, folder: Path, files: Collection[str]) -> str:
    """Return the first module of a folder that a source needs, and a file of the program hides; "" if none.

    Args:
        source: the script's part of `data.py`.
        folder: the script's folder. Modules in it are followed.
        files: modules of the program, which come first where `data.py` imports.
    """
    seen: set[str] = set()
    pending = [ast.parse(source)]
    while pending:
        for name in _imported(pending.pop()):
            file, package = folder / f"{name}.py", folder / name
            if name in seen or not (file.is_file() or package.is_dir()):
                continue
            if name in files:
                return name
            seen.add(name)
            for inner in sorted(package.rglob("*.py")) if package.is_dir() else [file]:
                try:
                    pending.append(ast.parse(inner.read_bytes()))
                except SyntaxError:
                    continue  # imported, it fails in the script too
    return ""


def _imported(tree: ast.AST) -> Iterator[str]:
    """Yield the first part of each module that a source imports by its whole name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module.partition(".")[0]

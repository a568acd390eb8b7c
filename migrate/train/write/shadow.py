"""Modules of the script's folder that the files of the program would hide."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

GUARD = "script_modules"


@dataclass(frozen=True)
class HiddenModules:
    """Modules that the script's part of `data.py` needs, and that files of the program hide.

    Attributes:
        names: their names, sorted.
        late: a module of the folder that a function imports while it runs, where `names` is not empty; "" if
            there is none.
    """

    names: tuple[str, ...]
    late: str


def hidden_modules(source: str, folder: Path, files: Collection[str]) -> HiddenModules:
    """Return the modules of a folder that a source needs, and files of the program hide.

    Args:
        source: the script's part of `data.py`.
        folder: the script's folder. Modules in it are followed.
        files: modules of the program, which come first where `data.py` imports.
    """
    seen: set[str] = set()
    late: list[str] = []
    pending: list[tuple[ast.AST, str]] = [(ast.parse(source), "")]
    while pending:
        tree, of = pending.pop()
        for name, at_once in _imported(tree):
            name = name or of  # a relative import is one of the module's own
            if not _is_module(name, folder):
                continue
            if not at_once:
                late.append(name)
            if name in seen:
                continue
            seen.add(name)
            file, package = folder / f"{name}.py", folder / name
            for inner in sorted(package.rglob("*.py")) if package.is_dir() else [file]:
                try:
                    pending.append((ast.parse(inner.read_bytes()), name))
                except SyntaxError:
                    continue  # imported, it fails in the script too
    names = tuple(sorted(seen & set(files)))
    return HiddenModules(names, late[0] if names and late else "")


def guarded(source: str, folder: Path) -> str:
    """Return the source with the imports of a folder's modules inside `with script_modules():`."""
    lines = source.splitlines()
    for statement in reversed(ast.parse(source).body):
        if not isinstance(statement, ast.Import | ast.ImportFrom):
            continue
        if any(_is_module(name, folder) for name, _ in _imported(statement)):
            first, last = statement.lineno - 1, statement.end_lineno or statement.lineno
            lines[first:last] = [f"with {GUARD}():", f"    {ast.unparse(statement)}"]
    return "\n".join(lines)


def _is_module(name: str, folder: Path) -> bool:
    """Whether a folder has a module of this name; "" is no name."""
    return bool(name) and ((folder / f"{name}.py").is_file() or (folder / name).is_dir())


def _imported(tree: ast.AST, at_once: bool = True) -> Iterator[tuple[str, bool]]:
    """Yield the first part of each module that is imported, and whether the file's own import does it.

    Relative imports have no name.
    """
    if isinstance(tree, ast.Import):
        yield from ((alias.name.partition(".")[0], at_once) for alias in tree.names)
    elif isinstance(tree, ast.ImportFrom):
        yield "" if tree.level else (tree.module or "").partition(".")[0], at_once
    function = isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    for child in ast.iter_child_nodes(tree):
        yield from _imported(child, at_once and not function)

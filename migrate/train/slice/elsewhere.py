"""Definitions that a script imports from modules of its folder."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

from migrate.train.slice.called import only_imported_as
from migrate.train.slice.text import FunctionNode, ScriptText

# Imports from one module to the next that are followed.
_STEPS = 4


@dataclass(frozen=True)
class ModuleFile:
    """A file's tree, and the folders that its absolute and its relative imports begin at."""

    tree: ast.Module
    folder: Path
    package: Path


def file_of_script(script: ScriptText) -> ModuleFile:
    """Return the script as a file."""
    folder = Path(script.name).resolve().parent
    return ModuleFile(script.tree, folder, folder)


def definition(
    file: ModuleFile, named: ast.expr, steps: int = _STEPS
) -> tuple[FunctionNode | ast.ClassDef | None, ModuleFile]:
    """Return the function or class that an expression names, and the file that has it.

    Args:
        file: the file of the expression.
        named: `MetricLogger`, `misc.MetricLogger`.
        steps: imports that are followed at most.

    Returns:
        None and the file, for what is not defined once in the file or in a module of the script's folder.
    """
    path = only_imported_as(file.tree, named)
    if not path:
        name = named.id if isinstance(named, ast.Name) else ""
        own = [
            node
            for node in file.tree.body
            if isinstance(node, FunctionNode | ast.ClassDef) and node.name == name
        ]
        return (own[0] if len(own) == 1 else None), file
    level = len(path) - len(path.lstrip("."))
    start = file.package if level else file.folder
    for _ in range(level - 1):
        start = start.parent
    *modules, name = path.lstrip(".").split(".")
    place = start.joinpath(*modules)
    module = next(
        (f for f in (place.with_suffix(".py"), place / "__init__.py") if modules and f.is_file()),
        None,
    )
    if module is None or not steps:
        return None, file
    try:
        tree = ast.parse(module.read_text(encoding="utf-8", errors="replace"))
    except SyntaxError:
        return None, file
    return definition(ModuleFile(tree, file.folder, module.parent), ast.Name(name), steps - 1)

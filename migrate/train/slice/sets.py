"""Attributes that functions set in their arguments: `init_distributed_mode(args)` sets `args.distributed`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from migrate.train.slice.called import only_imported_as
from migrate.train.slice.text import FunctionNode, ScriptText, root


@dataclass(frozen=True)
class _File:
    """A file's tree, and the folder that its absolute and its relative imports begin at."""

    tree: ast.Module
    folder: Path
    package: Path


def sets_in_arguments(script: ScriptText, call: ast.Call) -> dict[str, set[str]]:
    """Attributes and keys that a called function sets of its arguments, by the argument's name.

    The function is one of the script, or of a module of its folder; of others nothing is known.

    Args:
        script: the script.
        call: a call in it.
    """
    folder = Path(script.name).resolve().parent
    return _sets(_File(script.tree, folder, folder), call, frozenset())


def _sets(source: _File, call: ast.Call, seen: frozenset[str]) -> dict[str, set[str]]:
    function, of = _function(source, call.func)
    if function is None or of is None or function.name in seen:
        return {}
    taken = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    arguments = dict(zip(taken, call.args, strict=False))
    arguments |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    changed = _changed(function, of, frozenset({*seen, function.name}))
    return {
        argument.id: changed[parameter]
        for parameter, argument in arguments.items()
        if isinstance(argument, ast.Name) and changed.get(parameter)
    }


def _changed(function: FunctionNode, of: _File, seen: frozenset[str]) -> dict[str, set[str]]:
    """Attributes and keys that a function, or one that it calls, sets of each name."""
    changed: dict[str, set[str]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store):
            changed.setdefault(root(node), set()).update(_part(node))
        elif isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            if name == "setattr" and len(node.args) == 3:
                changed.setdefault(root(node.args[0]), set()).update(_constant(node.args[1]))
            for argument, parts in _sets(of, node, seen).items():
                changed.setdefault(argument, set()).update(parts)
    return changed


def _part(node: ast.AST) -> Iterator[str]:
    """Yield the attribute or key of a name that a target sets: "gpu" of `args.gpu`, `args["gpu"]`."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        if isinstance(node.value, ast.Name):
            yield from [node.attr] if isinstance(node, ast.Attribute) else _constant(node.slice)
        node = node.value


def _constant(node: ast.AST) -> list[str]:
    text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return [node.value] if text else []  # type: ignore[attr-defined]


def _function(
    source: _File, called: ast.expr, steps: int = 4
) -> tuple[FunctionNode | None, _File | None]:
    """The function that an expression names, and the file that has it."""
    path = only_imported_as(source.tree, called)
    if not path:
        name = called.id if isinstance(called, ast.Name) else ""
        own = [n for n in source.tree.body if isinstance(n, FunctionNode) and n.name == name]
        return (own[0], source) if len(own) == 1 else (None, None)
    level = len(path) - len(path.lstrip("."))
    start = source.package if level else source.folder
    for _ in range(level - 1):
        start = start.parent
    *modules, name = path.lstrip(".").split(".")
    place = start.joinpath(*modules)
    file = next(
        (f for f in (place.with_suffix(".py"), place / "__init__.py") if modules and f.is_file()),
        None,
    )
    if file is None or not steps:
        return None, None
    try:
        tree = ast.parse(file.read_text(encoding="utf-8", errors="replace"))
    except SyntaxError:
        return None, None
    return _function(_File(tree, source.folder, file.parent), ast.Name(name), steps - 1)

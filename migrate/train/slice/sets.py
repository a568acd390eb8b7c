"""Attributes that functions set in their arguments: `init_distributed_mode(args)` sets `args.distributed`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from migrate.train.slice.elsewhere import ModuleFile, definition, file_of_script
from migrate.train.slice.text import FunctionNode, ScriptText, root


def sets_in_arguments(script: ScriptText, call: ast.Call) -> dict[str, set[str]]:
    """Attributes and keys that a called function sets of its arguments, by the argument's name.

    The function is one of the script, or of a module of its folder; of others nothing is known.

    Args:
        script: the script.
        call: a call in it.
    """
    return _sets(file_of_script(script), call, frozenset())


def _sets(source: ModuleFile, call: ast.Call, seen: frozenset[str]) -> dict[str, set[str]]:
    function, of = definition(source, call.func)
    if not isinstance(function, FunctionNode) or function.name in seen:
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


def _changed(function: FunctionNode, of: ModuleFile, seen: frozenset[str]) -> dict[str, set[str]]:
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

"""Code of ours that comes into a port: functions that operators need, and layers that Flax does not have."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
from collections.abc import Iterable
from functools import cache
from types import ModuleType
from typing import Any


def copied(wanted: Iterable[Any]) -> tuple[list[str], list[str]]:
    """The sources of functions and classes, with all of ours that they need, those that others use first.

    Returns:
        The sources, and the import statements that they need.
    """
    found: dict[str, str] = {}
    imports: dict[str, None] = {}
    for one in wanted:
        _add(one, found, imports)
    return list(found.values()), sorted(imports)


def _add(one: Any, found: dict[str, str], imports: dict[str, None]) -> None:
    module = inspect.getmodule(one)
    assert module is not None
    _add_name(module, one.__name__, found, imports)


def _add_name(
    module: ModuleType, name: str, found: dict[str, str], imports: dict[str, None]
) -> None:
    """A top-level definition of a module of ours, after what it uses."""
    key = f"{module.__name__}.{name}"
    if key in found:
        return
    text = _definitions(module).get(name)
    if text is None:
        return
    found[key] = ""  # it may use itself
    bound = _imported(module)
    for used in _names(text):
        if used == name:
            continue
        if used in _definitions(module):
            _add_name(module, used, found, imports)
        elif used in bound:
            statement, source, attribute = bound[used]
            if not source.startswith("converters."):
                imports[statement] = None
            elif attribute is not None:
                _add_name(importlib.import_module(source), attribute, found, imports)
            else:
                inner = importlib.import_module(source)
                for part in re.findall(rf"\b{used}\.(\w+)", text):
                    _add_name(inner, part, found, imports)
                text = re.sub(rf"\b{used}\.(?=\w)", "", text)
    del found[key]
    found[key] = text


def _names(text: str) -> list[str]:
    nodes = [node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)]
    # Annotations may be text.
    return list(dict.fromkeys(nodes))


@cache
def _definitions(module: ModuleType) -> dict[str, str]:
    """Name → source of what a module defines at its top."""
    text = inspect.getsource(module)
    lines = text.splitlines()
    found = {}
    for node in ast.parse(text).body:
        first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))])
        source = "\n".join(lines[first - 1 : node.end_lineno])
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found[name] = source
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                found[name] = source
    return found


@cache
def _imported(module: ModuleType) -> dict[str, tuple[str, str, str | None]]:
    """Name → import statement, module, and the name there (None: the module itself)."""
    found: dict[str, tuple[str, str, str | None]] = {}
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Import):
            for one in node.names:
                made = f"import {one.name}" + (f" as {one.asname}" if one.asname else "")
                found[one.asname or one.name.split(".")[0]] = (made, one.name, None)
        elif isinstance(node, ast.ImportFrom) and node.module != "__future__":
            for one in node.names:
                made = f"from {node.module} import {one.name}"
                made += f" as {one.asname}" if one.asname else ""
                inner = f"{node.module}.{one.name}"
                ours = str(node.module).startswith("converters.") and _is_module(inner)
                name = one.asname or one.name
                found[name] = (
                    made,
                    inner if ours else str(node.module),
                    None if ours else one.name,
                )
    return found


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, AttributeError):
        return False

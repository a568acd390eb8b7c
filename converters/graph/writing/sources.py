"""Our own code that is copied into a port: functions for operators, and layers that Flax lacks."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
from collections.abc import Iterable, Iterator
from functools import cache
from types import ModuleType
from typing import Any


def copied(wanted: Iterable[Any]) -> tuple[list[str], list[str]]:
    """The sources of functions and classes, with all of ours that they need, those that others use first.

    Returns:
        The sources, and the import statements that they need.
    """
    sources: dict[str, str] = {}
    imports: dict[str, None] = {}
    for definition in wanted:
        _add(definition, sources, imports)
    return list(sources.values()), sorted(imports)


def _add(definition: Any, sources: dict[str, str], imports: dict[str, None]) -> None:
    module = inspect.getmodule(definition)
    assert module is not None
    _add_name(module, definition.__name__, sources, imports)


def _add_name(
    module: ModuleType, name: str, sources: dict[str, str], imports: dict[str, None]
) -> None:
    """A top-level definition of a module of ours, after what it uses."""
    key = f"{module.__name__}.{name}"
    if key in sources:
        return
    text = _definitions(module).get(name)
    if text is None:
        return
    sources[key] = ""  # it may use itself
    bound = _imported(module)
    for used in _names(text):
        if used == name:
            continue
        if used in _definitions(module):
            _add_name(module, used, sources, imports)
        elif used in bound:
            statement, source, attribute = bound[used]
            if not source.startswith("converters."):
                imports[statement] = None
            elif attribute is not None:
                _add_name(importlib.import_module(source), attribute, sources, imports)
            else:
                inner = importlib.import_module(source)
                for part in re.findall(rf"\b{used}\.(\w+)", text):
                    _add_name(inner, part, sources, imports)
                text = re.sub(rf"\b{used}\.(?=\w)", "", text)
    del sources[key]
    sources[key] = text


def _names(text: str) -> list[str]:
    nodes = [node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)]
    # Annotations may be text.
    return list(dict.fromkeys(nodes))


@cache
def _definitions(module: ModuleType) -> dict[str, str]:
    """Name → source of what a module defines at its top."""
    text = inspect.getsource(module)
    lines = text.splitlines()
    definitions = {}
    for node in ast.parse(text).body:
        first = min(
            [node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))]
        )
        source = "\n".join(lines[first - 1 : node.end_lineno])
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                definitions[name] = source
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                definitions[name] = source
    return definitions


@cache
def _imported(module: ModuleType) -> dict[str, tuple[str, str, str | None]]:
    """Name → import statement, module, and the name there (None: the module itself).

    Imports within functions stay there.
    """
    imports: dict[str, tuple[str, str, str | None]] = {}
    for node in _outside_functions(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                statement = f"import {alias.name}" + (f" as {alias.asname}" if alias.asname else "")
                imports[alias.asname or alias.name.split(".")[0]] = (statement, alias.name, None)
        elif isinstance(node, ast.ImportFrom) and node.module != "__future__":
            for alias in node.names:
                statement = f"from {node.module} import {alias.name}"
                statement += f" as {alias.asname}" if alias.asname else ""
                inner = f"{node.module}.{alias.name}"
                ours = str(node.module).startswith("converters.") and _is_module(inner)
                name = alias.asname or alias.name
                imports[name] = (
                    statement,
                    inner if ours else str(node.module),
                    None if ours else alias.name,
                )
    return imports


def _outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    if not isinstance(node, ast.FunctionDef):
        for child in ast.iter_child_nodes(node):
            yield from _outside_functions(child)


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, AttributeError):
        return False

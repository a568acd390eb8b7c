"""Attributes that files of a project read, on any object."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Set
from functools import lru_cache
from typing import TYPE_CHECKING

from migrate.catalogue.words import MOVES
from migrate.syntax.walk_ast import walk

if TYPE_CHECKING:
    from migrate.model.project.project import Project, SourceModule

TENSORS = ("Parameter", "Tensor")


def set_attributes(module: SourceModule) -> frozenset[str]:
    """Return the names of the attributes that a file sets, by assignment or `setattr`."""
    return frozenset(_set(module))


@lru_cache(maxsize=2)
def read_attributes(project: Project) -> frozenset[str]:
    """Return the names of the attributes that some file of a project may read.

    A string counts too, such as a key of `getattr`, but not the key of `setattr`. An attribute that an object
    reads of itself (`self.decays`) is no attribute of a parameter, unless its class derives from one. Neither
    is what only an initializer reads, which runs before any move.
    """
    initializers = _initializers(project)
    return frozenset(
        name for module in project.modules.values() for name in _read(module, initializers)
    )


def _initializers(project: Project) -> frozenset[str]:
    """Return the functions that only constructors of modules use: `self.apply(partial(init, depth))`.

    A constructor that moves something may read after the move.
    """
    applied: set[str] = set()
    other: set[str] = set()
    for module in project.modules.values():
        inside: set[int] = set()
        for node in module.nodes:
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                calls = [part for part in walk(node) if isinstance(part, ast.Call)]
                methods = {call.func.attr for call in calls if isinstance(call.func, ast.Attribute)}
                if methods.isdisjoint(MOVES):
                    for call in calls:
                        if _is_apply(call.func):
                            inside.update(id(part) for part in walk(call))
        for node in module.nodes:
            match node:
                case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Constant(value=str(name)):
                    (applied if id(node) in inside else other).add(name)
    return frozenset(applied - other)


def _is_apply(function: ast.expr) -> bool:
    match function:
        case ast.Attribute(value=ast.Name(id="self"), attr="apply"):
            return True
    return False


def _set(module: SourceModule) -> Iterator[str]:
    for node in module.nodes:
        match node:
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
            case ast.Call(func=ast.Name(id="setattr"), args=[_, ast.Constant(value=str(name)), *_]):
                yield name


def _read(module: SourceModule, initializers: Set[str]) -> Iterator[str]:
    before_moves = {
        id(part)
        for node in module.nodes
        if isinstance(node, ast.FunctionDef) and node.name in initializers
        for part in walk(node)
    }
    derives = any(
        ast.unparse(base).endswith(TENSORS)
        for node in module.nodes
        if isinstance(node, ast.ClassDef)
        for base in node.bases
    )
    keys = {
        id(node.args[1])
        for node in module.nodes
        if isinstance(node, ast.Call) and len(node.args) == 3 and _is_setattr(node)
    }
    for node in module.nodes:
        if id(node) in before_moves:
            continue
        match node:
            case ast.AugAssign(target=ast.Attribute(attr=name)):
                yield name
            case ast.Attribute(value=ast.Name(id="self")) if not derives:
                pass
            case ast.Attribute(attr=name, ctx=ast.Load()):
                yield name
            case ast.Constant(value=str(name)) if id(node) not in keys:
                yield name


def _is_setattr(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id == "setattr"

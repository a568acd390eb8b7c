"""Attributes that files of a project read, on any object."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

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
    reads of itself (`self.decays`) is no attribute of a parameter, unless its class derives from one.
    """
    return frozenset(name for module in project.modules.values() for name in _read(module))


def _set(module: SourceModule) -> Iterator[str]:
    for node in module.nodes:
        match node:
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
            case ast.Call(func=ast.Name(id="setattr"), args=[_, ast.Constant(value=str(name)), *_]):
                yield name


def _read(module: SourceModule) -> Iterator[str]:
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

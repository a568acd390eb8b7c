"""Attributes that files of a project read: on any object, of a command line, the number of processes."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Set
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from migrate.catalogue.launchers import SPAWN, SPAWN_PARAMETERS
from migrate.catalogue.words import MOVES
from migrate.syntax.walk_ast import walk

if TYPE_CHECKING:
    from migrate.model.project.project import Project, SourceModule

TENSORS = ("Parameter", "Tensor")
SPAWNING = frozenset(name.rpartition(".")[2] for name in SPAWN)


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


def counts_read(project: Project, module: SourceModule) -> Mapping[str, list[tuple[Path, int]]]:
    """Return where imported files read what a file starts its processes by.

    Returns:
        The field of an object that `nprocs=cfg.run.gpus` passes, as the file spells it, with the places that
        read `.run.gpus` of any object.
    """
    counts = {ast.unparse(count): _fields(count) for count in _counts(module)}
    if not counts:
        return {}
    reads = [
        (node, imported.path)
        for imported in _imported(project, module)
        for node in imported.nodes
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    ]
    return {
        spelled: [(path, node.lineno) for node, path in reads if _fields(node) == fields]
        for spelled, fields in counts.items()
        if fields
    }


def options_read(project: Project, module: SourceModule) -> frozenset[str]:
    """Return the attributes that imported files read, of a file that declares options."""
    if b"add_argument" not in module.data:
        return frozenset()
    return frozenset(
        node.attr
        for imported in _imported(project, module)
        for node in imported.nodes
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    )


def _imported(project: Project, module: SourceModule) -> Iterator[SourceModule]:
    """Yield the files of the project that a file imports, directly or by others."""
    seen, waiting = {module.path}, list(project.imports(module))
    while waiting:
        path = waiting.pop()
        if path in seen or path not in project.modules:
            continue
        seen.add(path)
        yield project.modules[path]
        waiting += project.imports(project.modules[path])


def _counts(module: SourceModule) -> Iterator[ast.Attribute]:
    """Yield the fields that a file passes to `mp.spawn` as the number of processes."""
    if b"nprocs" not in module.data and b"spawn" not in module.data:
        return
    at = SPAWN_PARAMETERS.index("nprocs")
    for node in module.nodes:
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in SPAWNING:
            passed = [k.value for k in node.keywords if k.arg == "nprocs"] + node.args[at : at + 1]
            yield from (count for count in passed if isinstance(count, ast.Attribute))


def _fields(node: ast.expr) -> tuple[str, ...]:
    """Return the names behind the variable of `cfg.run.gpus`; none where it is not of a variable."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    return tuple(names) if isinstance(node, ast.Name) else ()

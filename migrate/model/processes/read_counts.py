"""What files that a script imports read of its command line and of the number of its processes."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from migrate.catalogue.launchers import SPAWN, SPAWN_PARAMETERS
from migrate.model.calls.order import closure
from migrate.model.calls.rank_tests import last_part
from migrate.model.project.project import Project, SourceModule

SPAWNING = frozenset(name.rpartition(".")[2] for name in SPAWN)


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

    def after(path: Path) -> list[Path]:
        known = project.modules.get(path)
        return [] if known is None else list(project.imports(known))

    for path in closure([module.path], after):
        if path != module.path and path in project.modules:
            yield project.modules[path]


def _counts(module: SourceModule) -> Iterator[ast.Attribute]:
    """Yield the fields that a file passes to `mp.spawn` as the number of processes."""
    if b"nprocs" not in module.data and b"spawn" not in module.data:
        return
    at = SPAWN_PARAMETERS.index("nprocs")
    for node in module.nodes:
        if isinstance(node, ast.Call) and last_part(node.func) in SPAWNING:
            passed = [k.value for k in node.keywords if k.arg == "nprocs"] + node.args[at : at + 1]
            yield from (count for count in passed if isinstance(count, ast.Attribute))


def _fields(node: ast.expr) -> tuple[str, ...]:
    """Return the names behind the variable of `cfg.run.gpus`; none where it is not of a variable."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    return tuple(names) if isinstance(node, ast.Name) else ()

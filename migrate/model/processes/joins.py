"""Calls by which a process joins the process group."""

from __future__ import annotations

import ast
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from migrate.catalogue import torch_distributed
from migrate.catalogue.entry import names
from migrate.model.calls.order import closure
from migrate.model.calls.rank_tests import last_part

if TYPE_CHECKING:
    from migrate.model.calls.analysis import Analysis

GROUPS = frozenset(name.rpartition(".")[2] for name in names(*torch_distributed.INIT))
MESHES = frozenset(name.rpartition(".")[2] for name in torch_distributed.MESHES)
WORDS = frozenset(word.encode() for word in GROUPS | MESHES)


def may_join(data: bytes) -> bool:
    """Whether a file with the text `data` may join a process group itself."""
    return any(word in data for word in WORDS)


@lru_cache(maxsize=2)
def joins_of(analysis: Analysis) -> frozenset[ast.Call]:
    """Return the calls of a project that join a process group, by their names.

    A device mesh joins only where no program with its file makes a group: otherwise the group is there.
    """
    joins, meshes = set(), []
    for top in analysis.scopes.values():
        if may_join(top.module.data):
            for call, _ in analysis.calls_in(top):
                last = last_part(call.func)
                if last in GROUPS:
                    joins.add(call)
                elif last in MESHES:
                    meshes.append((call, top.module.path))
    grouped = {
        path
        for path, top in analysis.scopes.items()
        if any(word.encode() in top.module.data for word in GROUPS)
    }
    return frozenset(
        joins
        | {call for call, path in meshes if grouped.isdisjoint(_programs_with(path, analysis))}
    )


def _programs_with(path: Path, analysis: Analysis) -> set[Path]:
    """Return the files of all programs that contain the file `path`."""
    modules, imports = analysis.project.modules, analysis.project.imports
    importers = analysis.project.importers
    programs = set(closure([path], lambda file: importers.get(file, ())))
    return set(closure(programs, lambda file: imports(modules[file]) if file in modules else ()))

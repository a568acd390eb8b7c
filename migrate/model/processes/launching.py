"""Code that runs in the launching process before the replicas start, and the calls that join their group.

XLA must not be used before the launch: once its runtime is started in that process, the launch raises.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Set
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from migrate.catalogue import torch_cuda, torch_distributed
from migrate.catalogue.entry import names
from migrate.catalogue.launchers import LAUNCHERS
from migrate.model.calls.callers import may_run, reaching
from migrate.model.calls.kinds import External
from migrate.model.calls.order import closure
from migrate.model.calls.rank_tests import last_part
from migrate.model.calls.scopes import Function, ModuleScope, Region, Scope
from migrate.model.processes.early_ranks import early_nodes

if TYPE_CHECKING:
    from migrate.model.calls.analysis import Analysis

# A process of plain `multiprocessing` started in another file does not train: it may read data.
STARTS = LAUNCHERS | {"torch.multiprocessing.Process"}
# A file without any of these words calls none of them.
WORDS = frozenset(name.rpartition(".")[2].encode() for name in STARTS)
SEEDS = names(*torch_cuda.SEEDS) | {"torch_xla.manual_seed"}


class Launching:
    """Functions that run in the process that starts the replicas.

    Args:
        analysis: the project.

    Attributes:
        functions: those that run before the launch. Not included are a worker that the process calls itself
            instead of launching one, and functions that join the process group.
    """

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis
        self._workers: set[Function] = set()
        # The line of the last launch in a body that launches, or that calls a function that launches.
        self._last: dict[Region, int] = {}
        for scope in analysis.scopes.values():
            if any(word in scope.module.data for word in WORDS):
                self._note_launches(scope)
        self._note_callers()
        self.launches = bool(self._last)
        self.functions: set[Function] = set()
        for call, _ in self.calls():
            self.functions |= set(self._below(call))

    def led_by(self, scope: ModuleScope) -> bool:
        """Whether running the file calls a function that starts the replicas."""
        return any(
            function in self._starting
            for root in (scope.guard, scope.region)
            for region in self._analysis.regions(root)
            for call, _ in region.calls
            for function in self._analysis.running[call].functions
        )

    @cached_property
    def _starting(self) -> frozenset[Function]:
        """Functions that start the replicas, directly or through calls."""
        first = {
            function: True
            for scope in self._analysis.scopes.values()
            if any(word in scope.module.data for word in WORDS)
            for function in scope.functions
            for region in self._analysis.regions(function.region)
            for call, at in region.calls
            if self._is_one_of(LAUNCHERS, call, at)
        }
        return frozenset(reaching(self._analysis, first))

    def calls(self) -> Iterator[tuple[ast.Call, Scope]]:
        """Yield the calls before a launch in a body that launches, or leads to a launch."""
        for root, last in self._last.items():
            for region in self._analysis.regions(root):
                yield from (pair for pair in region.calls if pair[0].lineno < last)

    @cached_property
    def imported(self) -> frozenset[Path]:
        """Files that a script that starts the replicas imports before the launch, directly or indirectly."""
        project = self._analysis.project
        paths: set[Path] = set()
        waiting: list[Path] = []
        for scope in self._analysis.scopes.values():
            last = self._last.get(scope.region)
            if last is not None:
                early = [
                    n for n in early_nodes(scope.module.tree) if getattr(n, "lineno", last) < last
                ]
                waiting += project.imported_by(scope.module.path, early)
        while waiting:
            path = waiting.pop()
            module = project.modules.get(path)
            if path not in paths and module is not None:
                paths.add(path)
                waiting += project.imported_by(path, early_nodes(module.tree))
        return frozenset(paths)

    def seeds(self, call: ast.Call) -> bool:
        """Whether a function that `call` runs seeds CUDA or XLA, directly or through calls."""
        return any(
            self._is_one_of(SEEDS, inner, scope)
            for function in self._below(call)
            for region in self._analysis.regions(function.region)
            for inner, scope in region.calls
        )

    def _note_launches(self, scope: ModuleScope) -> None:
        launches = False
        for root in (scope.guard, scope.region, *(function.region for function in scope.functions)):
            for region in self._analysis.regions(root):
                for call, at in region.calls:
                    if self._is_one_of(STARTS, call, at):
                        launches = True
                        self._last[root] = max(call.lineno, self._last.get(root, 0))
                        self._note_workers(call, at)
        if launches:
            # Imported before anything under its guard runs.
            self._last.setdefault(scope.region, len(scope.module.lines) + 1)

    def _note_workers(self, call: ast.Call, scope: Scope) -> None:
        for arg in (*call.args, *(keyword.value for keyword in call.keywords)):
            values = self._analysis.evaluator.values(arg, scope)
            self._workers |= {value for value in values if isinstance(value, Function)}

    def _note_callers(self) -> None:
        """Record the bodies that call a function that launches, at any depth."""
        new = bool(self._last)
        while new:
            new = False
            for root in self._analysis.roots:
                for region in self._analysis.regions(root):
                    for call, _ in region.calls:
                        leads = any(
                            function.region in self._last
                            for function in self._analysis.running[call].functions
                        )
                        if leads and call.lineno > self._last.get(root, 0):
                            self._last[root] = call.lineno
                            new = True

    def _below(self, call: ast.Call) -> Iterator[Function]:
        """Yield the functions that `call` runs, and those that they run."""
        seen: set[Function] = set()
        waiting = list(self._analysis.running[call].functions)
        while waiting:
            function = waiting.pop()
            if function in seen or function in self._workers or function.region in self._last:
                continue
            seen.add(function)
            inner = [
                inner_call
                for region in self._analysis.regions(function.region)
                for inner_call, _ in region.calls
            ]
            if not joins_of(self._analysis).isdisjoint(inner):
                continue
            yield function
            for region in inner:
                waiting += self._analysis.running[region].functions

    def _is_one_of(self, names: frozenset[str], call: ast.Call, scope: Scope) -> bool:
        last = last_part(call.func)
        attribute = isinstance(call.func, ast.Attribute)
        if attribute and all(name.rsplit(".", 1)[-1] != last for name in names):
            return False
        values = self._analysis.evaluator.values(call.func, scope)
        return any(isinstance(value, External) and value.name in names for value in values)


@lru_cache(maxsize=2)
def launching_of(analysis: Analysis) -> Launching:
    """Return the code that runs before the launch, computed once for all files."""
    return Launching(analysis)


@lru_cache(maxsize=2)
def joining_of(analysis: Analysis) -> frozenset[Function]:
    """Return the functions that join a process group, directly or through calls.

    A call that switches the group off, `set_up(distributed=False)`, does not join.
    """
    first = {
        function: True
        for scope in analysis.scopes.values()
        if may_join(scope.module.data)
        for function in scope.functions
        for region in analysis.regions(function.region)
        for call, _ in region.calls
        if call in joins_of(analysis)
    }
    leading = frozenset(reaching(analysis, first))
    return frozenset(
        reaching(
            analysis,
            first,
            lambda call, _, function: joins_by(call, function, leading, analysis),
        )
    )


def joins_by(
    call: ast.Call, function: Function, joining: Set[Function], analysis: Analysis
) -> bool:
    """Whether `call` joins a process group by running `function`: no constant argument rules it out."""
    if function not in joining:
        return False
    return may_run(
        call,
        function,
        lambda inner, _: (
            inner in joins_of(analysis) or not joining.isdisjoint(analysis.running[inner].functions)
        ),
        analysis,
    )


GROUP_CALLS = frozenset(name.rpartition(".")[2] for name in names(*torch_distributed.INIT))
MESH_CALLS = frozenset(name.rpartition(".")[2] for name in torch_distributed.MESHES)
JOINING_WORDS = frozenset(word.encode() for word in GROUP_CALLS | MESH_CALLS)


def may_join(data: bytes) -> bool:
    """Whether a file with the text `data` may join a process group itself."""
    return any(word in data for word in JOINING_WORDS)


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
                if last in GROUP_CALLS:
                    joins.add(call)
                elif last in MESH_CALLS:
                    meshes.append((call, top.module.path))
    grouped = {
        path
        for path, top in analysis.scopes.items()
        if any(word.encode() in top.module.data for word in GROUP_CALLS)
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

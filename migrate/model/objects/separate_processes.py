"""Functions that never run in the same process, because different scripts run them separately."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property, lru_cache

from migrate.model.calls.analysis import Analysis
from migrate.model.calls.kinds import UNKNOWN
from migrate.model.calls.order import closure
from migrate.model.calls.scopes import Class, Function, ModuleScope, Scope
from migrate.model.objects.programs import programs_of

# A function, the body of a module, or a module's main guard, which only its own process runs.
Runs = Scope | tuple[ModuleScope, str]
GUARD = "guard"


class Scripts:
    """Scripts of a project, by the code that each of them runs.

    Args:
        analysis: of the project.
    """

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis
        self._evaluator = analysis.evaluator
        self._programs = programs_of(analysis)
        self._led: dict[Scope, frozenset[Runs]] = {}

    def are_apart(self, scope: Scope, other: Scope) -> bool:
        """Whether no process runs both `scope` and `other`: the processes of each are known, and differ."""
        if scope.top is other.top:
            return False
        first, second = self._leading_to(scope), self._leading_to(other)
        known = all(any(not isinstance(runs, Function) for runs in led) for led in (first, second))
        return known and first.isdisjoint(second)

    def _leading_to(self, scope: Scope) -> frozenset[Runs]:
        if scope not in self._led:
            starts = list(_of_module(scope)) if isinstance(scope, ModuleScope) else [scope]
            self._led[scope] = frozenset(closure(starts, self._callers_of))
        return self._led[scope]

    def _callers_of(self, runs: Runs) -> Iterable[Runs]:
        if isinstance(runs, tuple):
            return ()
        callers = list(self._callers.get(runs, ()))
        if isinstance(runs, Function):
            if runs.owner is not None:  # including methods that a library calls on an object
                callers += self._making.get(runs.owner, ())
            if isinstance(runs.parent, Function):
                callers.append(runs.parent)
        return callers

    @cached_property
    def _callers(self) -> dict[Scope, set[Runs]]:
        callers: dict[Scope, set[Runs]] = defaultdict(set)
        for top in self._analysis.scopes.values():
            for scope in top.functions:
                for entered in self._programs.run_by(scope.region):
                    callers[entered].add(scope)
            for entered in self._programs.run_by(top.region):
                callers[entered].add(top)
            for entered in self._programs.run_by(top.guard):
                callers[entered].add((top, GUARD))
        return callers

    @cached_property
    def _making(self) -> dict[Class, set[Runs]]:
        """Code that makes instances of each class, or of a derived class."""
        makers: dict[Class, set[Runs]] = defaultdict(set)
        for call, scope in self._evaluator.calls():
            for value in self._evaluator.values(call.func, scope) - {UNKNOWN}:
                if isinstance(value, Class):
                    runs = _of_module(scope) if isinstance(scope, ModuleScope) else (scope,)
                    for class_ in (value, *self._evaluator.ancestors(value)):
                        makers[class_].update(runs)
        return makers


def _of_module(top: ModuleScope) -> Iterator[Runs]:
    """Yield the body and the main guard of a module, which are one scope."""
    yield top
    yield top, GUARD


@lru_cache(maxsize=2)
def scripts_of(analysis: Analysis) -> Scripts:
    """Return the scripts of an analyzed project, computed once for all files."""
    return Scripts(analysis)

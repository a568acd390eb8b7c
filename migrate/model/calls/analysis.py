"""Effects of every function of a project, its step loops, and the functions that a script reaches.

A step loop is the innermost loop whose body runs both a backward pass and an optimizer step. It consumes
these effects: a caller of `train()` does not train a step.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Set
from functools import cached_property
from pathlib import Path

from migrate.model.calls.effect import BOTH, Effect
from migrate.model.calls.kinds import ClassInstance, External, ProjectModule, Value
from migrate.model.calls.order import callees_first
from migrate.model.calls.passing import Passed, passed_by
from migrate.model.calls.scopes import Class, Function, ModuleScope, Region, Scope, scopes_of
from migrate.model.calls.training import CAPTURES, Running, running
from migrate.model.calls.values import Evaluator, Parameter, concerned
from migrate.model.calls.warm_up import around_training, before_graphs
from migrate.model.project.project import Project, file_of

# Maximum number of rounds in which functions passed as arguments are followed.
ROUNDS = 8
# Maximum number of passes over functions that call one another.
TURNS = 10


class Analysis:
    """Functions that the calls of a project run, with their effects.

    Args:
        project: its files, parsed.
        before: the analysis of the project before some of its files changed.
    """

    def __init__(self, project: Project, before: Analysis | None = None) -> None:
        self.project = project
        known = before.scopes if before is not None else {}
        self.scopes: dict[Path, ModuleScope] = {
            path: known[path]
            if path in known and known[path].module is module
            else scopes_of(module)
            for path, module in project.modules.items()
        }
        self.evaluator = Evaluator(project, self.scopes)
        self.running: dict[ast.Call, Running] = {}
        self._resolve()
        self.evaluator.settle()
        self.effects: dict[Function, Effect] = {}
        self.step_loops: set[Region] = set()
        # Regions that belong to a CUDA graph, not to the training loop.
        self.captured: set[Region] = set()
        self._warm_ups = before_graphs(self)
        self._spread()
        self.step_loops -= around_training(self)

    def regions(self, region: Region) -> Iterator[Region]:
        """Yield `region` and the loops in it."""
        waiting = [region]
        while waiting:
            current = waiting.pop()
            yield current
            waiting += current.inner

    def calls_in(self, top: ModuleScope) -> Iterator[tuple[ast.Call, Scope]]:
        """Yield every call of a file with its scope."""
        for root in top.all_roots:
            for region in self.regions(root):
                yield from region.calls

    @cached_property
    def roots(self) -> list[Region]:
        """Code that runs on its own: the bodies of functions, of modules, and of main guards."""
        regions: list[Region] = []
        for scope in self.scopes.values():
            regions += scope.all_roots
        return regions

    @cached_property
    def passed(self) -> dict[ast.Call, list[Passed]]:
        """Arguments that each call of the project passes to functions and data classes."""
        return {call: [*passed_by(ran, self.evaluator)] for call, ran in self.running.items()}

    def effect(self, call: ast.Call) -> Effect:
        """Return the effect of running `call`."""
        ran = self.running[call]
        effect = ran.effect
        for function in ran.functions:
            effect |= self.effects.get(function, Effect.NONE)
        return effect

    def _resolve(self) -> None:
        waiting = [
            call for root in self.roots for region in self.regions(root) for call in region.calls
        ]
        needed: dict[ast.Call, Set[Parameter | None]] = {}
        changed: set[Parameter] = set()
        for number in range(ROUNDS):
            new: set[Parameter] = set()
            for call, scope in waiting:
                if number == 0 or concerned(needed[call], changed):
                    self.evaluator.asked_for()
                    ran = self.running[call] = running(call, scope, self.evaluator)
                    new |= self._pass_arguments(ran)
                    needed[call] = self.evaluator.asked_for()
            if not new:
                return
            waiting = [
                (call, scope)
                for call, scope in waiting
                if self.evaluator.depends_on_parameters(call.func, scope)
                or self._receiver_depends(call, scope)
                or any(self.evaluator.depends_on_parameters(arg, scope) for arg in _parts(call))
            ]
            self.evaluator.forget(new)
            changed = new

    def _receiver_depends(self, call: ast.Call, scope: Scope) -> bool:
        function = call.func
        return isinstance(function, ast.Attribute) and self.evaluator.depends_on_parameters(
            function.value, scope
        )

    def _pass_arguments(self, ran: Running) -> set[Parameter]:
        """Record the possible arguments of a call by parameter; return the parameters with new values."""
        new: set[Parameter] = set()
        for argument in passed_by(ran, self.evaluator):
            parameter = argument.to, argument.name
            known = self.evaluator.passed[parameter]
            if not argument.values <= known:
                new.add(parameter)
                known |= argument.values
            node = argument.node
            if node is not None and self.evaluator.contents.hold(parameter, node, argument.scope):
                new.add(parameter)
        return new

    def _spread(self) -> None:
        calls = {
            function: {
                callee
                for region in self.regions(function.region)
                for call, _ in region.calls
                for callee in self.running[call].functions
            }
            for scope in self.scopes.values()
            for function in scope.functions
        }
        for group in callees_first(calls):
            for _ in range(TURNS if len(group) > 1 or group[0] in calls[group[0]] else 1):
                before = [self.effects.get(function) for function in group]
                for function in group:
                    self.effects[function] = self._of_region(function.region)
                if before == [self.effects[function] for function in group]:
                    break
        for scope in self.scopes.values():
            self._of_region(scope.region)
            self._of_region(scope.guard)

    def _captures(self, region: Region) -> bool:
        """Whether the block is captured as a CUDA graph, or warms up on a stream for the capture."""
        if region in self._warm_ups:
            return True
        if not any(b"CUDAGraph" in scope.module.data for _, scope in region.entered):
            return False
        values = (v for call, at in region.entered for v in self.evaluator.values(call.func, at))
        return any(isinstance(value, External) and value.name in CAPTURES for value in values)

    def _of_region(self, region: Region, taken: bool = False) -> Effect:
        """Return the effects of `region` that its step loops do not consume; record those loops.

        Args:
            region: a body.
            taken: whether its effects belong to a loop marked by hand, or to a CUDA graph.
        """
        effect = Effect.NONE
        for call, _ in region.calls:
            effect |= self.effect(call)
        if self._captures(region) or region in self.captured:
            taken = True
            self.captured.update((region, *region.inner))
        for inner in region.inner:
            effect |= self._of_region(inner, taken or region.marked)
        self.step_loops.discard(region)
        if region.loop is None or taken:
            return Effect.NONE if region in self.captured else effect
        if effect == BOTH or region.marked:
            self.step_loops.add(region)
            return Effect.NONE
        return effect

    def reached_from(self, script: Path) -> set[Region]:
        """Return the loops that may run when the file `script` runs, imports included."""
        start = self.scopes.get(script.resolve())
        if start is None:
            return set()
        reached: set[Scope] = set()
        seen: set[Region] = set()
        waiting: list[Region] = [start.region, start.guard]
        while waiting:
            root = waiting.pop()
            for region in self.regions(root):
                if region in seen:
                    continue
                seen.add(region)
                for scope in self.entered(region):
                    if scope not in reached:
                        reached.add(scope)
                        waiting.append(scope.region)
        return seen

    def entered(self, region: Region) -> Iterator[Scope]:
        """Yield the functions that `region` calls or passes on, and the modules that it imports."""
        for call, scope in region.calls:
            yield from self.running[call].functions
            for arg in _arguments(call):
                for value in self.evaluator.values(arg, scope):
                    yield from self._callable(value)
        for binding, scope in region.imports:
            for value in self.evaluator.imported(binding):
                if isinstance(value, ProjectModule) and (module := self._module_at(value.path)):
                    yield module
            importer = scope.module.path
            place = self.project.find(importer, binding.module, binding.level, binding.name)
            if place is not None and (module := self._module_at(place)):
                yield module

    def _callable(self, value: Value) -> Iterator[Function]:
        if isinstance(value, Function):
            yield value
        elif isinstance(value, Class):
            if method := self.evaluator.method(value, "__init__"):
                yield method
        elif isinstance(value, ClassInstance) and (
            method := self.evaluator.method(value.of, "__call__")
        ):
            yield method

    def _module_at(self, place: Path) -> ModuleScope | None:
        file = file_of(place)
        return self.scopes.get(file) if file is not None else None


def _arguments(call: ast.Call) -> Iterable[ast.expr]:
    return (*call.args, *(keyword.value for keyword in call.keywords))


def _parts(call: ast.Call) -> Iterator[ast.expr]:
    """Yield the arguments of a call, with those in the tuple `args=(…)` of a launch one by one."""
    for arg in _arguments(call):
        yield from arg.elts if isinstance(arg, ast.Tuple | ast.List) else (arg,)

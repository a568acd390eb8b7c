"""Seeds of the random numbers of a project's devices, and whether its replicas draw any there.

CUDA's generators follow `torch.manual_seed`, and without a seed each process draws its own numbers. XLA's
generator follows nothing and starts every replica at the same seed.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from migrate import draws
from migrate.catalogue import (
    drawing,
    launchers,
    libraries,
    torch_cuda,
    torch_distributed,
    torch_other,
)
from migrate.catalogue.entry import names
from migrate.model.calls.callers import callers_of, reaching
from migrate.model.calls.kinds import External
from migrate.model.calls.option_defaults import OptionalSeeds, Site
from migrate.model.calls.rank_tests import last_part
from migrate.model.calls.scopes import Class, Function, ModuleScope, Region, Scope
from migrate.model.objects.programs import programs_of
from migrate.model.processes.launching import joining_of, joins_of, launching_of, may_join

if TYPE_CHECKING:
    from migrate.model.calls.analysis import Analysis

HOST_SEEDS = names(*torch_other.CPU_SEEDS) | drawing.BY_CHANCE
DEVICE_SEEDS = names(*torch_cuda.SEEDS, *torch_cuda.RANDOM_SEEDS)
# Calls that tell which process of a data loader is running.
WORKER = "torch.utils.data.get_worker_info"
XLA_SEED = "torch_xla.manual_seed"
XLA_STATES = frozenset({"torch_xla.core.xla_model.set_rng_state"})
SEED_WORDS = (b"seed", b"set_determinism", b"prepare_environment")
# Libraries that start the replicas of a script.
LED_BY = frozenset(entry.name for entry in libraries.LAUNCHERS)
# Calls that start replicas, by the last part of the name.
LAUNCHES = frozenset(
    {"launch", "notebook_launcher", *(name.rpartition(".")[2] for name in launchers.SPAWN)}
)


class Start(StrEnum):
    """Seed of a replica's device after it has joined the process group."""

    OWN = "own"  # nothing seeds the script: each replica draws its own numbers
    HOST = "host"  # the seed that the host's generator already has
    GIVEN = (
        "given"  # the same, if a seed was set; otherwise the seed that the generator drew itself
    )


@dataclass(frozen=True)
class Seeding:
    """Seeding calls of one file; calls are identified by their ends.

    Attributes:
        joining: the calls that join the process group and after which the device is to be seeded.
        early: the calls that seed torch when the file is read, before the replicas are launched.
        silent: the calls in replicas that seed torch by code that does not seed XLA and stays unchanged: a
            library's, another file's that is not rewritten, or code that runs before the launch too.
        for_devices: the seeds of torch that replicas set, in a file that may name no device.
        in_loaders: the seeds that the processes of a data loader set.
        at_import: the seeds set when the file is read, in a script whose replicas another library starts.
    """

    joining: dict[tuple[int, int], Start]
    early: frozenset[tuple[int, int]] = frozenset()
    silent: frozenset[tuple[int, int]] = frozenset()
    for_devices: frozenset[tuple[int, int]] = frozenset()
    in_loaders: frozenset[tuple[int, int]] = frozenset()
    at_import: frozenset[tuple[int, int]] = frozenset()


NO_SEEDING = Seeding({})


class Randomness:
    """Seeds and draws of a project.

    Args:
        analysis: the project.
    """

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis
        self._external: dict[ast.Call, str] = {}
        self._mentions: dict[str, int] = {}  # of the names of functions, in all files

    def of_file(self, top: ModuleScope, alone: bool) -> Seeding:
        """Return the seeding calls of the file `top`.

        Args:
            top: the file.
            alone: whether only this file of the project is rewritten.
        """
        if not self._entries and not self._loaders and top.module.path not in self._accelerated:
            return NO_SEEDING
        launching = launching_of(self._analysis).functions
        kept = self._early_functions | launching
        early, silent, devices, loaders, imported = set(), set(), set(), set(), set()
        on_device = self._is_led(top) or top.module.path in self._accelerated
        others = top.guard if self._entries and top not in self._entries else None
        for root, call, scope in self._calls_of(top):
            end = _end(call, top)
            if root is top.region and self._is_read_early(top):
                if self._seeds(call, scope):
                    early.add(end)
            elif isinstance(scope, Function) and scope in self._loaders:
                if self._is_torch_seed(call, scope):
                    loaders.add(end)
            elif top.module.path in self._led_by_others and (
                root is top.region or scope in self._functions_at_import
            ):
                if self._is_torch_seed(call, scope) or self._is_library_seed(call, scope):
                    imported.add(end)
            elif isinstance(scope, Function) and scope in kept:
                if scope in self._early_functions and self._seeds(call, scope):
                    early.add(end)
            elif not on_device or root is others:
                continue
            elif self._is_silent(call, scope, top, alone) and not self._is_before(call):
                silent.add(end)
            elif self._is_torch_seed(call, scope):
                devices.add(end)
        return Seeding(
            dict(self._joining(top)),
            frozenset(early),
            frozenset(silent),
            frozenset(devices),
            frozenset(loaders),
            frozenset(imported),
        )

    def seeds_of(self, entry: ModuleScope, running: Scope) -> Iterator[Site]:
        """Yield the calls that seed torch on the host, in the files of a script.

        A library function (`accelerate.utils.set_seed`) counts; one for the processes of a loader does not.

        Args:
            entry: the script.
            running: a scope that runs even without a call in the project: a launcher may call it.
        """
        for path in self._closure(entry):
            top = self._analysis.scopes[path]
            for root, call, scope in self._calls_of(top):
                if root is top.guard and top is not entry:
                    continue
                if isinstance(scope, Function) and (
                    scope in self._loaders or (scope is not running and self._is_unused(scope))
                ):
                    continue
                if self._is_host_seed(call, scope):
                    yield call, scope

    def draws_unseeded(self, top: ModuleScope) -> bool:
        """Whether the file, or a file that it imports, draws on a device, and no call seeds it.

        torch_xla starts all ranks at one seed then, torch_tpu and CUDA start each rank at its own.
        """
        calls = [
            (call, scope)
            for path in self._closure(top)
            for _, call, scope in self._calls_of(self._analysis.scopes[path])
            if scope not in self._loaders
        ]
        return any(self._draws(*site) for site in calls) and not any(
            self._is_any_seed(*site) or self._name(*site) in XLA_STATES for site in calls
        )

    def scripts_of(self, top: ModuleScope) -> list[ModuleScope]:
        """Return the scripts that the file is a part of, possibly itself."""
        path = top.module.path
        return [
            scope
            for scope in self._scopes
            if self._is_script(scope) and path in self._closure(scope)
        ]

    def is_optional(self, site: Site) -> bool:
        """Whether a seed is set only if one is given."""
        return self._optional.is_optional(site)

    def comes_after(self, site: Site, firsts: Iterable[Site]) -> bool:
        """Whether the call at `site` runs after one of `firsts`."""
        return self._optional.comes_after(site, firsts)

    def _is_host_seed(self, call: ast.Call, scope: Scope) -> bool:
        if not self._speaks_of_seeds(scope):
            return False
        name = self._name(call, scope)
        return (
            name in HOST_SEEDS
            or (name.startswith("accelerate.") and last_part(call.func) in drawing.SEEDERS)
            or self._is_library_seed(call, scope)
        )

    def _joining(self, top: ModuleScope) -> Iterator[tuple[tuple[int, int], Start]]:
        if not may_join(top.module.data):
            return
        starts = {
            self._starts[entry]
            for entry, files in self._entries.items()
            if top.module.path in files
        }
        start = starts.pop() if len(starts) == 1 else (Start.HOST if starts - {None} else None)
        if start is not None:
            for _, call, scope in self._calls_of(top):
                if self._joins_here(call, scope) and scope not in self._loaders:
                    yield _end(call, top), start

    @cached_property
    def _starts(self) -> dict[ModuleScope, Start | None]:
        """Seeds that the replicas of each script set on their devices after joining."""
        return {entry: self._start(entry, files) for entry, files in self._entries.items()}

    def _start(self, entry: ModuleScope, files: frozenset[Path]) -> Start | None:
        """Return the seed that the replicas of a script set on their devices after joining."""
        scopes = [self._analysis.scopes[path] for path in files]
        if any(
            self._seeds(call, scope)
            for top in scopes
            if self._is_read_early(top)
            for root, call, scope in self._calls_of(top)
            if root is top.region
        ):
            return Start.HOST
        seeds: list[Site] = []
        launched = launching_of(self._analysis).functions
        for top in scopes:
            for root, call, scope in self._calls_of(top):
                if root is top.guard and top is not entry:
                    continue
                if isinstance(scope, Function) and (
                    scope in self._loaders or self._is_never_called(scope)
                ):
                    continue
                if self._is_any_seed(call, scope):
                    if scope in launched or not self._optional.is_optional((call, scope)):
                        return None
                    seeds.append((call, scope))
        drawn = any(
            self._draws(call, scope)
            for top in scopes
            for root, call, scope in self._calls_of(top)
            if root is not top.guard or top is entry
        )
        if not drawn:
            return None
        joins = [
            (call, scope)
            for top in scopes
            for _, call, scope in self._calls_of(top)
            if self._joins_here(call, scope)
        ]
        later = all(self._optional.comes_after(seed, joins) for seed in seeds)
        return Start.OWN if later else Start.GIVEN

    def _is_never_called(self, function: Function) -> bool:
        """Whether nothing in the project calls a function, or passes it on to be called."""
        if function.owner is not None or function.decorators:
            return False
        if function in callers_of(self._analysis):
            return False
        name = function.name
        if name not in self._mentions:
            word = name.encode()
            self._mentions[name] = sum(scope.module.data.count(word) for scope in self._scopes)
        return self._mentions[name] == 1

    def _is_unused(self, function: Function) -> bool:
        """Whether the project at most imports a function."""
        if function.owner is not None or function.decorators:
            return False
        if function in callers_of(self._analysis):
            return False
        mention = re.compile(rf"\b{re.escape(function.name)}\b")
        return not any(
            mention.search(line) and not line.lstrip().startswith(("def ", "from ", "import "))
            for scope in self._scopes
            if function.name.encode() in scope.module.data
            for line in scope.module.lines
        )

    @cached_property
    def _optional(self) -> OptionalSeeds:
        """Seeds that are set only if one is given."""
        return OptionalSeeds(self._analysis)

    @cached_property
    def _entries(self) -> dict[ModuleScope, frozenset[Path]]:
        """Scripts that join a process group, each with its own file and the files that it imports."""
        if not any(may_join(scope.module.data) for scope in self._scopes):
            return {}
        entries = {}
        for top in filter(self._is_script, self._scopes):
            files = self._closure(top)
            data = [self._analysis.scopes[path].module.data for path in files]
            if any(map(may_join, data)) and self._joins(top):
                entries[top] = files
        return entries

    def _joins_here(self, call: ast.Call, scope: Scope) -> bool:
        """Whether `call` itself joins a process group, as a function of torch."""
        return (
            call in joins_of(self._analysis) and self._name(call, scope) in torch_distributed.JOINS
        )

    def _joins(self, top: ModuleScope) -> bool:
        """Whether running a script joins a process group."""
        joining = joining_of(self._analysis)
        return any(
            call in joins_of(self._analysis)
            or not joining.isdisjoint(self._analysis.running[call].functions)
            for region in self._analysis.reached_from(top.module.path)
            for call, _ in region.calls
        )

    def _is_script(self, top: ModuleScope) -> bool:
        """Whether a file is a script: no other file imports it, or it has a main guard."""
        guarded = any(region.calls for region in self._analysis.regions(top.guard))
        return guarded or top.module.path not in self._analysis.project.importers

    @cached_property
    def _scopes(self) -> list[ModuleScope]:
        return list(self._analysis.scopes.values())

    def _closure(self, top: ModuleScope) -> frozenset[Path]:
        project = self._analysis.project
        seen: set[Path] = set()
        waiting = [top.module.path]
        while waiting:
            path = waiting.pop()
            if path in seen or path not in self._analysis.scopes:
                continue
            seen.add(path)
            waiting += project.imports(self._analysis.scopes[path].module)
        return frozenset(seen)

    def _is_led(self, top: ModuleScope) -> bool:
        """Whether the replicas of a script run code of the file."""
        return any(top.module.path in files for files in self._entries.values())

    @cached_property
    def _accelerated(self) -> frozenset[Path]:
        """Files of scripts that run on an accelerator, including scripts of one process."""
        if not self._with_seeds:
            return frozenset()
        programs = programs_of(self._analysis)
        paths: set[Path] = set()
        for top in filter(self._is_script, self._scopes):
            files = self._closure(top)
            if files & programs.moving_files and any(map(programs.names_accelerator, files)):
                paths |= files
        return frozenset(paths)

    @cached_property
    def _led_by_others(self) -> frozenset[Path]:
        """Files of scripts whose replicas a library starts, as Lightning and Accelerate do.

        Each of its processes reads the files, and the first one before it starts the others.
        """
        words = [name.encode() for name in LED_BY]
        leading = {
            top.module.path
            for top in self._scopes
            if any(word in top.module.data for word in words) and _imports(top, LED_BY)
        }
        paths: set[Path] = set()
        for top in filter(self._is_script, self._scopes) if leading else ():
            files = self._closure(top)
            if files & leading and top not in self._entries:
                paths |= files
        return frozenset(paths)

    @cached_property
    def _functions_at_import(self) -> frozenset[Scope]:
        """Functions of such files that run when the files are read."""
        functions: set[Function] = set()
        waiting = [
            function
            for path in self._led_by_others
            for region in self._analysis.regions(self._analysis.scopes[path].region)
            for call, _ in region.calls
            for function in self._analysis.running[call].functions
        ]
        self._follow(waiting, functions)
        return frozenset(functions)

    def _is_read_early(self, top: ModuleScope) -> bool:
        """Whether the file is read in the process that launches the replicas, and again in each replica."""
        return any(
            top.module.path in files and entry not in self._run_as_read
            for entry, files in self._entries.items()
        )

    @cached_property
    def _run_as_read(self) -> frozenset[ModuleScope]:
        """Scripts that join when they are read: they start as a whole in each replica."""
        joining = joining_of(self._analysis)
        return frozenset(
            top
            for top in self._entries
            if any(
                call in joins_of(self._analysis)
                or not joining.isdisjoint(self._analysis.running[call].functions)
                for region in self._analysis.regions(top.region)
                for call, _ in region.calls
                if last_part(call.func) not in LAUNCHES
            )
        )

    @cached_property
    def _early_functions(self) -> frozenset[Function]:
        """Functions that run when files are read, before the replicas are launched."""
        if not self._with_seeds:
            return frozenset()
        functions: set[Function] = set()
        waiting = [
            function
            for top in self._scopes
            if self._is_read_early(top)
            for region in self._analysis.regions(top.region)
            for call, _ in region.calls
            for function in self._analysis.running[call].functions
        ]
        self._follow(waiting, functions)
        return frozenset(functions)

    @cached_property
    def _loaders(self) -> frozenset[Scope]:
        """Functions that run in the processes of a data loader."""
        functions: set[Function] = set()
        waiting: list[Function] = []
        for top in self._scopes:
            if b"worker_init_fn" not in top.module.data:
                continue
            for _, call, scope in self._calls_of(top):
                for keyword in call.keywords:
                    if keyword.arg == "worker_init_fn":
                        waiting += self._functions(keyword.value, scope)
        self._follow(waiting, functions)
        # The replica may call the functions that these call, too.
        return frozenset(functions) | self._in_data_sets

    @cached_property
    def _in_data_sets(self) -> frozenset[Scope]:
        """Functions that make an item of a dataset, or ask which loader process they run in.

        Functions that only these call are included: `reseed`, which only `__getitem__` calls.
        """
        scopes: set[Scope] = {
            scope
            for top in self._scopes
            if b"get_worker_info" in top.module.data or b"def __getitem__" in top.module.data
            for _, call, scope in self._calls_of(top)
            if isinstance(scope, Function)
            and (scope.name == "__getitem__" or self._name(call, scope) == WORKER)
        }
        callers: dict[Function, set[Scope]] = defaultdict(set)
        for ran in self._analysis.running.values() if scopes else ():
            for function in ran.functions:
                callers[function].add(ran.scope)
        waiting = {function for function in callers if callers[function] & scopes}
        while waiting:
            function = waiting.pop()
            if function not in scopes and callers[function] <= scopes | {function}:
                scopes.add(function)
                waiting |= {other for other in callers if function in callers[other]}
        return frozenset(scopes)

    def _functions(self, node: ast.expr, scope: Scope) -> Iterator[Function]:
        """Yield the functions that an expression may be, including those that `partial` binds."""
        nodes = [node]
        if isinstance(node, ast.Call):
            nodes += node.args
        for part in nodes:
            for value in self._analysis.evaluator.values(part, scope):
                if isinstance(value, Function):
                    yield value

    def _follow(self, waiting: list[Function], functions: set[Function]) -> None:
        while waiting:
            function = waiting.pop()
            if function in functions:
                continue
            functions.add(function)
            for region in self._analysis.regions(function.region):
                for call, _ in region.calls:
                    waiting += self._analysis.running[call].functions

    def _calls_of(self, top: ModuleScope) -> Iterator[tuple[Region, ast.Call, Scope]]:
        for root in top.all_roots:
            for region in self._analysis.regions(root):
                for call, scope in region.calls:
                    yield root, call, scope

    def _name(self, call: ast.Call, scope: Scope) -> str:
        """Return the dotted name of the external function that a call runs; empty for other calls."""
        if call not in self._external:
            values = self._analysis.evaluator.values(call.func, scope)
            outside = [value.name for value in values if isinstance(value, External)]
            self._external[call] = outside[0] if outside else ""
        return self._external[call]

    def _is_torch_seed(self, call: ast.Call, scope: Scope) -> bool:
        return self._speaks_of_seeds(scope) and (
            self._name(call, scope) in HOST_SEEDS | DEVICE_SEEDS
        )

    def _speaks_of_seeds(self, scope: Scope) -> bool:
        return scope.module.path in self._with_seeds

    @cached_property
    def _with_seeds(self) -> frozenset[Path]:
        """Files whose text contains the name of a seeding function."""
        return frozenset(
            top.module.path
            for top in self._scopes
            if any(word in top.module.data for word in SEED_WORDS)
        )

    def _is_library_seed(self, call: ast.Call, scope: Scope) -> bool:
        """Whether a library's function seeds torch."""
        if not self._speaks_of_seeds(scope):
            return False
        last = last_part(call.func)
        name = self._name(call, scope)
        if name in drawing.BY_CHANCE | drawing.SEEDING_FUNCTIONS:
            return True
        if last in drawing.SEEDING_METHODS and not self._analysis.running[call].functions:
            return name.split(".")[0] not in drawing.OTHER_SEEDERS
        renamed = name.rpartition(".")[2]
        if renamed not in drawing.SEEDERS or "." not in name:
            return False
        return name.split(".")[0] not in drawing.OTHER_SEEDERS

    def _is_any_seed(self, call: ast.Call, scope: Scope) -> bool:
        name = self._name(call, scope) if self._speaks_of_seeds(scope) else ""
        return (
            name == XLA_SEED
            or name.startswith(("accelerate.", "shims."))
            or self._is_torch_seed(call, scope)
            or self._is_library_seed(call, scope)
        )

    def _seeds(self, call: ast.Call, scope: Scope) -> bool:
        """Whether a call seeds torch, itself or by a function of the project."""
        return (
            self._is_torch_seed(call, scope)
            or self._is_library_seed(call, scope)
            or not self._seeding.isdisjoint(self._analysis.running[call].functions)
        )

    @cached_property
    def _seeding(self) -> frozenset[Function]:
        """Functions of the project that seed torch, directly or through calls."""
        first = {
            scope: True
            for top in self._scopes
            if top.module.path in self._with_seeds
            for _, call, scope in self._calls_of(top)
            if isinstance(scope, Function)
            and scope not in self._loaders
            and (self._is_torch_seed(call, scope) or self._is_library_seed(call, scope))
        }
        return frozenset(reaching(self._analysis, first))

    def _is_silent(self, call: ast.Call, scope: Scope, top: ModuleScope, alone: bool) -> bool:
        """Whether a call in a replica seeds torch by code that does not seed XLA and stays unchanged."""
        if self._is_library_seed(call, scope):
            return True
        return any(
            function in self._direct
            and not self._trains(function)
            and (
                function in self._early_functions
                or (alone and function.module is not top.module and not self._seeds_xla(function))
            )
            for function in self._analysis.running[call].functions
        )

    @cached_property
    def _direct(self) -> frozenset[Function]:
        """Functions that seed, without those that do so by joining, launching or training."""
        joining = joining_of(self._analysis)
        return frozenset(path for path in self._seeding if path not in joining)

    def _trains(self, function: Function) -> bool:
        return any(
            region in self._analysis.step_loops
            for region in self._analysis.regions(function.region)
        )

    def _seeds_xla(self, function: Function) -> bool:
        return XLA_SEED.encode() in function.module.data

    def _is_before(self, call: ast.Call) -> bool:
        """Whether a call comes before the launch, in the process that launches."""
        return call in self._before

    @cached_property
    def _before(self) -> frozenset[ast.Call]:
        return frozenset(call for call, _ in launching_of(self._analysis).calls())

    def _draws(self, call: ast.Call, scope: Scope) -> bool:
        """Whether a call draws random numbers on the device of a replica, or makes an object that does."""
        last = self._drawer(call, scope)
        keywords = {keyword.arg: keyword.value for keyword in call.keywords}
        if "generator" in keywords:
            return False
        if last in drawing.DROPOUTS:
            return not _is_zero(_probability(call, last, keywords))
        place = drawing.DROPOUT_PLACES.get(last)
        if place is not None and len(call.args) > place:
            return not _is_zero(call.args[place])
        if last in drawing.DROP_BY_DEFAULT:
            return not _is_zero(keywords.get("dropout"))
        if last in draws.LIKES or last in drawing.SAMPLERS:
            return not _is_host(keywords.get("device"))
        if last in drawing.MAKERS and "device" in keywords:
            return not _is_host(keywords["device"])
        if last in draws.FILLS and isinstance(call.func, ast.Attribute):
            receiver = call.func.value
            return any(_is_filled(node, node is receiver) for node in self._bound(receiver, scope))
        if any(
            name in keywords and not _is_zero(keywords[name]) for name in ("dropout", "dropout_p")
        ) and self._name(call, scope).startswith("torch.nn."):
            return True
        return last[:1].isalpha() and self._is_library_model(self._name(call, scope))

    def _drawer(self, call: ast.Call, scope: Scope) -> str:
        """Return the last part of the callee's name; for a class of the project, that of its base.

        Empty for a function of the project: the calls in it are inspected themselves.
        """
        name = self._name(call, scope)
        if name:
            return name.rpartition(".")[2]
        for value in self._analysis.evaluator.values(call.func, scope):
            if isinstance(value, Class):
                bases = self._analysis.evaluator.external_bases(value)
                lasts = [base.rpartition(".")[2] for base in bases]
                return next((base for base in lasts if base in drawing.DROPOUTS), "")
        return "" if self._analysis.running[call].functions else last_part(call.func)

    def _bound(self, node: ast.expr, scope: Scope) -> list[ast.expr]:
        """Return the values of a variable, or the expression itself."""
        if not isinstance(node, ast.Name):
            return [node]
        bindings = self._analysis.evaluator.bindings_of(node.id, scope)
        return [binding.value for binding in bindings if binding.value is not None]

    @staticmethod
    def _is_library_model(name: str) -> bool:
        if name.startswith("transformers."):
            _, _, rest = name.partition(".")
            owner, _, method = rest.rpartition(".")
            maker = owner if method in ("from_pretrained", "from_config") else rest
            return "Model" in maker or "For" in maker
        if name.startswith("diffusers."):
            return "Model" in name
        return name.startswith(drawing.LIBRARY_MODELS)


def _probability(
    call: ast.Call, last: str, keywords: dict[str | None, ast.expr]
) -> ast.expr | None:
    for name in drawing.PROBABILITIES:
        if name in keywords:
            return keywords[name]
    is_module = last[:1].isupper()
    return call.args[0] if is_module and call.args else None


def _is_filled(node: ast.expr, at_once: bool) -> bool:
    """Whether a tensor that is filled at random is made on the device.

    Args:
        node: the expression that makes the tensor.
        at_once: whether it is filled where it is made: a variable without a device is often a weight's first
            value, on the host.
    """
    if not isinstance(node, ast.Call) or last_part(node.func) not in drawing.EMPTIES:
        return False
    devices = [keyword.value for keyword in node.keywords if keyword.arg == "device"]
    last = last_part(node.func)
    like = last.endswith("_like") or last.startswith("new")
    return (at_once or like or bool(devices)) and not any(map(_is_host, devices))


def _is_zero(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value in (0, None)


def _is_host(node: ast.expr | None) -> bool:
    if isinstance(node, ast.Call) and node.args:
        node = node.args[0]
    return isinstance(node, ast.Constant) and node.value == "cpu"


def _end(call: ast.Call, top: ModuleScope) -> tuple[int, int]:
    return call.end_lineno or 0, top.module.column(call.end_lineno or 0, call.end_col_offset or 0)


@lru_cache(maxsize=2)
def randomness_of(analysis: Analysis) -> Randomness:
    """Return the seeds and draws of a project, computed once for all files."""
    return Randomness(analysis)


def _imports(top: ModuleScope, packages: Set[str]) -> bool:
    """Whether a file imports one of `packages`, or a part of it."""
    for node in top.module.nodes:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        else:
            continue
        if any(name.partition(".")[0] in packages for name in names):
            return True
    return False

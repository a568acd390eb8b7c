"""Start of a script, and the part of its code that runs in a replica.

A CUDA script either starts its processes itself (`mp.spawn`, `mp.Process`), or torchrun, SLURM or MPI starts
it once per device. On a TPU `torch_xla.launch` starts the replicas, so scripts of the second kind need a
launcher.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum, auto
from functools import cached_property
from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue import catalogue, libraries, torch_distributed, torch_other
from migrate.catalogue.entry import names
from migrate.catalogue.launchers import (
    DDP,
    LAUNCH,
    LAUNCH_PARAMETERS,
    LAUNCHERS,
    PROCESS,
    SCRIPT,
    SPAWN_PARAMETERS,
    SUBMITTERS,
)
from migrate.catalogue.words import CLUSTER, JOINING, RANKS
from migrate.reading.names.dead_branches import live_nodes
from migrate.reading.replicas.one_device import one_device
from migrate.reading.values.devices import moves
from migrate.reading.values.environment import environment_name, is_read
from migrate.syntax.tree import (
    base_name,
    bind,
    code,
    keyword,
    nodes,
    nodes_of,
    string_value,
    targets,
)

if TYPE_CHECKING:
    from migrate.reading.values.devices import Placed

INIT = names(*torch_distributed.INIT)
JOINS = torch_distributed.JOINS
USING = DDP | names(*torch_other.SAMPLERS) | {"apex.parallel.DistributedDataParallel"}
# Frameworks with a launcher of their own.
FRAMEWORKS = names(*libraries.LAUNCHERS)
WITHOUT_TPU = names(*(entry for entry in libraries.LAUNCHERS if entry.code))

IMPORTED = (cst.Import, cst.ImportFrom, cst.ImportAlias, cst.AsName)


def launch_parameters(call: cst.Call, context: Placed) -> tuple[str, ...]:
    """Return the parameters of a launch in their order: those of `torch_xla.launch`, or of `mp.spawn`."""
    ours = context.qualified_name(call.func) == LAUNCH
    return LAUNCH_PARAMETERS if ours else SPAWN_PARAMETERS


def start_method(call: cst.Call, context: Placed) -> cst.Arg | None:
    """Return the argument of a launch that says how its processes start."""
    return _option(call, "start_method", context)


def is_forked(call: cst.Call, context: Placed) -> bool:
    """Whether a launch forks its processes, which then have the functions of this one."""
    method = start_method(call, context)
    return method is not None and string_value(method.value) == "fork"


def stays_in_process(call: cst.Call, context: Placed) -> bool:
    """Whether a launch starts no process: `debug_single_process=True`."""
    single = _option(call, "debug_single_process", context)
    return single is not None and code(single.value) == "True"


def _option(call: cst.Call, name: str, context: Placed) -> cst.Arg | None:
    bound = bind(call, launch_parameters(call, context)) or {}
    return bound.get(name) or keyword(call, name)


class Style(Enum):
    """Launch style: what creates the replicas of a script."""

    NONE = auto()  # not a distributed program, or a module of one
    SPAWN = auto()  # the script starts them itself
    MAIN = auto()  # started from outside; the work is under the `__main__` guard
    MODULE = auto()  # started from outside; all or some of the work runs when the file is read


class Launch:
    """Launch of one script.

    Attributes:
        style: the launch style of the script as it stands.
        guard: its `if __name__ == '__main__':`, if it has just one without `else`.
    """

    def __init__(self, context: Placed) -> None:
        self._context = context
        self.guard, self._guards = self._find_guard()
        self.style = self._find_style()

    def _find_guard(self) -> tuple[cst.If | None, list[cst.If]]:
        guards = [s for s in self._context.module.body if isinstance(s, cst.If) and is_guard(s)]
        guard = guards[0] if len(guards) == 1 and guards[0].orelse is None else None
        return guard, guards

    def _find_style(self) -> Style:
        if self._starts_itself():
            return Style.SPAWN
        if self._context.uses_rpc or self._of_a_framework():
            return Style.NONE
        if not any(self._joins(call) or self._uses(call) for call in self._calls):
            return Style.NONE  # in any part of its code
        at_import = self.reached(self.import_roots, live=True)
        joins = any(self._joins(node) for node in at_import)
        if joins and any(self._uses(node) or _is_backward(node) for node in at_import):
            return Style.MODULE
        if not self._guards:
            return Style.NONE
        guarded = self.reached(self._guards, live=True)
        if not self._has_replicas(guarded):
            return Style.NONE
        if self.guard is None or self._needs_the_module(at_import):
            return Style.MODULE
        return Style.MAIN

    @property
    def is_switched_off(self) -> bool:
        """Whether only a constant test keeps the script from joining a process group or using DDP."""
        roots = [*self.import_roots, *self._guards]
        if self.style is not Style.NONE or self._has_replicas(self.reached(roots, live=True)):
            return False
        return self._has_replicas(self.reached(roots))

    def _has_replicas(self, nodes: Iterable[cst.CSTNode]) -> bool:
        """Whether one of `nodes` joins a process group or uses something that needs one."""
        return any(self._joins(node) or self._uses(node) for node in nodes)

    @property
    def spawns(self) -> bool:
        """Whether the script starts the replicas itself, as it stands."""
        return self.style is Style.SPAWN

    def _starts_itself(self) -> bool:
        return self._context.calls.launches or any(
            self._context.qualified_name(call.func) in LAUNCHERS or self.starts_replica(call)
            for call in self._context.all_of(cst.Call)
        )

    def starts_replica(self, call: cst.Call) -> bool:
        """Whether `call` creates a process that joins a process group, or may do so.

        Processes that load data, or serve, are no replicas.
        """
        processes = self._context.calls.processes
        if processes and self._context.place(call) in processes:
            return True
        if self._context.qualified_name(call.func) not in PROCESS:
            return False
        target = keyword(call, "target")
        if target is None or not isinstance(target.value, cst.Name):
            return False
        worker = self._context.functions.get(target.value.value)
        if worker is not None:
            return any(self._joins(node) for node in self.reached([worker]))
        _, bound = self._context.bound_to(target.value)
        return isinstance(bound, cst.Param) and any(map(self._joins, self._calls))

    @property
    def withheld(self) -> str:
        """Framework without TPU support because of which a distributed script gets no launch."""
        if self.style is not Style.NONE or not self._of_a_framework() or self._context.uses_rpc:
            return ""
        roots = self._guards or self.import_roots
        if not any(self._joins_by_torch(node) for node in self.reached(roots, live=True)):
            return ""  # the framework's own function joins
        held = self._frameworks()
        return next(iter(sorted(held))) if held <= WITHOUT_TPU else ""

    def _of_a_framework(self) -> bool:
        """Whether the script imports such a framework with any options: without one it trains by itself."""
        return bool(self._frameworks())

    def _frameworks(self) -> frozenset[str]:
        imported: list[cst.CSTNode] = []
        for node in self._context.all_of(cst.Import, cst.ImportFrom):
            if any(_is_a_choice(around) for around in self._context.ancestors(node)):
                continue
            if isinstance(node, cst.Import):
                imported.extend(alias.name for alias in node.names)
            elif node.module is not None and not node.relative:
                imported.append(node.module)
        roots = frozenset(code(name).split(".")[0] for name in imported)
        return roots & (FRAMEWORKS | SUBMITTERS)

    @cached_property
    def import_roots(self) -> list[cst.CSTNode]:
        """Statements that run when the file is read: no definitions, imports or guards."""
        return [
            statement
            for statement in self._context.module.body
            if not isinstance(statement, cst.FunctionDef | cst.ClassDef)
            and not any(statement is guard for guard in self._guards)
        ]

    def _needs_the_module(self, at_import: list[cst.CSTNode]) -> bool:
        """Whether reading the file, or its imports, already asks for the rank or works on a device.

        A spawned replica reads the file before its rank and its device are set.
        """
        assert self.guard is not None
        after = self._context.module.body[self._context.module.body.index(self.guard) + 1 :]
        if self._context.source.is_notebook:
            # The other cells run once, in the notebook itself, which has no names of a replica.
            bound = {t.value for t in targets(self.guard) if isinstance(t, cst.Name)}
            if any(bound & names_in(statement) for statement in after):
                return True
        elif any(not isinstance(s, cst.FunctionDef | cst.ClassDef) for s in after):
            return True
        if any(
            isinstance(node, cst.ImportFrom) and isinstance(node.names, cst.ImportStar)
            for node in nodes(self.guard)
        ):
            return True  # a syntax error in a function
        if self._context.calls.imports_ranks:
            return True
        defined = list(self._run_by_definitions())
        early = [*at_import, *(node for root in defined for node in nodes(root))]
        return any(self._asks_for_rank(node) for node in early) or any(
            True for root in [*self.import_roots, *defined] for _ in moves(root, self._context)
        )

    def _run_by_definitions(self) -> Iterator[cst.CSTNode]:
        """Yield the nodes that run where a function or class is defined: defaults, decorators, attributes."""
        waiting: list[cst.CSTNode] = list(self._context.module.body)
        while waiting:
            node = waiting.pop()
            if isinstance(node, cst.FunctionDef):
                yield from node.decorators
                yield from (
                    parameter.default
                    for parameter in self._context.below(node.params, cst.Param)
                    if parameter.default is not None
                )
            elif isinstance(node, cst.ClassDef):
                yield from node.decorators
                waiting.extend(node.body.body)
                yield from (
                    statement
                    for statement in node.body.body
                    if not isinstance(statement, cst.FunctionDef | cst.ClassDef)
                )

    def _asks_for_rank(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.SimpleString) and is_read(node, self._context):
            name = environment_name(node, self._context)
            return name in RANKS or name in CLUSTER
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
            parses = node.func.attr.value in ("parse_args", "parse_known_args")
            return parses and any(declares_local_rank(call) for call in self._calls)
        return False

    @cached_property
    def _calls(self) -> Sequence[cst.Call]:
        return self._context.all_of(cst.Call)

    def _joins(self, node: cst.CSTNode) -> bool:
        """Whether `node` is a call that joins the process group, here or in a module of the project."""
        if not isinstance(node, cst.Call):
            return False
        name = self._context.qualified_name(node.func) or ""
        if name in JOINS or self._module_named_for_joining(node):
            return True
        joins = self._context.calls.joins
        return bool(joins) and self._context.place(node) in joins

    def _joins_by_torch(self, node: cst.CSTNode) -> bool:
        """Whether `node` calls `init_process_group`, here or in a module of the project."""
        if not isinstance(node, cst.Call):
            return False
        joins = self._context.calls.joins
        elsewhere = bool(joins) and self._context.place(node) in joins
        return elsewhere or self._context.qualified_name(node.func) in INIT

    def _module_named_for_joining(self, call: cst.Call) -> str:
        """Return the module of the function that `call` runs, if the name says that it joins a group."""
        root, _, last = (self._context.qualified_name(call.func) or "").rpartition(".")
        return root if last in JOINING and not root.startswith("torch") else ""

    def absent_module(self, call: cst.Call) -> str:
        """Return the module that should join the process group in `call` and is no file of the project.

        Empty for a script that imports no other file of its project: it was perhaps given by itself.
        """
        root = self._module_named_for_joining(call)
        calls = self._context.calls
        known = not calls.local or calls.is_local(root) or self._context.place(call) in calls.joins
        return "" if known or catalogue.of_import(root) is not None else root

    def joining(self) -> cst.Call | None:
        """Return the first call that visibly joins the process group in the script."""
        return next((call for call in self._context.all_of(cst.Call) if self._joins(call)), None)

    def _uses(self, node: cst.CSTNode) -> bool:
        return isinstance(node, cst.Call) and self._context.qualified_name(node.func) in USING

    def reached(self, roots: Iterable[cst.CSTNode], *, live: bool = False) -> list[cst.CSTNode]:
        """Return the nodes at and below `roots`, and the nodes of all definitions that they may run.

        Args:
            roots: the start nodes.
            live: whether to leave out branches that constant tests rule out: `if distributed:` after
                `distributed = False`.
        """
        reached: list[cst.CSTNode] = []
        stack = list(roots)
        seen: set[int] = set()
        while stack:
            root = stack.pop()
            for node in live_nodes(root, self._context) if live else nodes(root):
                reached.append(node)
                if isinstance(node, cst.Name) and self._may_run(node):
                    for definition in self._definitions.get(node.value, ()):
                        if id(definition) not in seen:
                            seen.add(id(definition))
                            stack.append(definition)
        return reached

    def _may_run(self, name: cst.Name) -> bool:
        """Whether `name` may be a function of the file, not a part of an import, attribute or keyword."""
        below: cst.CSTNode = name
        above = self._context.parent(name)
        while isinstance(above, cst.Attribute):  # a package may be nested: `import run.of.losses`
            if above.value is not below:
                return False
            below, above = above, self._context.parent(above)
        if isinstance(above, cst.Arg):
            return above.value is below
        return not isinstance(above, IMPORTED)

    @cached_property
    def _definitions(self) -> dict[str, list[cst.FunctionDef | cst.ClassDef]]:
        definitions: dict[str, list[cst.FunctionDef | cst.ClassDef]] = defaultdict(list)
        for statement in self._context.module.body:
            if isinstance(statement, cst.FunctionDef | cst.ClassDef):
                definitions[statement.name.value].append(statement)
                for decorator in statement.decorators:  # `@main.command()`: `main` runs it
                    root = base_name(decorator.decorator)
                    if root is not None and root.partition(".")[0] in self._context.functions:
                        definitions[root.partition(".")[0]].append(statement)
        return definitions

    def workers(self) -> Iterator[cst.FunctionDef]:
        """Yield the functions that the script starts in processes of their own."""
        for call in self._calls:
            is_process = self.starts_replica(call)
            if is_process or self._context.qualified_name(call.func) in LAUNCHERS:
                target = keyword(call, "target" if is_process else "fn")
                if target is None and not is_process and call.args:
                    target = call.args[0]
                if target is not None and isinstance(target.value, cst.Name):
                    worker = self._context.functions.get(target.value.value)
                    if worker is not None:
                        yield worker

    @cached_property
    def for_one_device(self) -> frozenset[int]:
        """Ids of the calls that run a worker in this process if there is only one device."""
        matches = (one_device(call, self._context) for call in self._calls)
        return frozenset(id(match[1]) for match in matches if match is not None)

    @cached_property
    def _in_replicas(self) -> frozenset[int]:
        if self.style is Style.MODULE:
            return frozenset(id(node) for node in self._context.nodes)
        if self.style is Style.MAIN:
            assert self.guard is not None
            return frozenset(id(node) for node in self.reached([self.guard]))
        workers = list(self.workers())
        if any(self._context.qualified_name(call.func) == SCRIPT for call in self._calls):
            return frozenset(id(node) for node in self._context.nodes)
        if any("run_path" in code(worker) for worker in workers):  # the launcher of a whole file
            return frozenset(id(node) for node in self._context.nodes)
        joining = [
            f for f in self._context.below(self._context.module, cst.FunctionDef) if self._inits(f)
        ]
        return frozenset(id(node) for node in self.reached(workers or joining))

    def _inits(self, function: cst.FunctionDef) -> bool:
        """Whether `function` joins a process group: it then runs in a replica, whoever calls it."""
        calls = nodes_of(function, cst.Call)
        return any(self._context.qualified_name(call.func) in JOINS for call in calls)

    def in_replica(self, node: cst.CSTNode) -> bool:
        """Whether `node` runs in a replica, after the launch, as far as this file shows."""
        return id(node) in self._in_replicas

    def before(self, node: cst.CSTNode) -> bool:
        """Whether `node` runs only in the process that launches the workers of this file.

        Code there must not ask the runtime for anything.
        """
        return id(node) in self._in_launcher and not self.in_replica(node)

    @cached_property
    def _in_launcher(self) -> frozenset[int]:
        if not any(self.workers()):
            return frozenset()
        return frozenset(id(node) for node in self.reached([*self.import_roots, *self._guards]))


def _is_backward(node: cst.CSTNode) -> bool:
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute):
        return False
    return node.func.attr.value == "backward"


def _is_a_choice(node: cst.CSTNode) -> bool:
    """Whether the code in `node` may not run: it depends on an option, or on an installed package."""
    return isinstance(node, cst.Try) or (isinstance(node, cst.If) and not is_guard(node))


def is_guard(node: cst.If) -> bool:
    """Whether `node` is `if __name__ == '__main__':`, in either order."""
    test = node.test
    if not isinstance(test, cst.Comparison) or len(test.comparisons) != 1:
        return False
    other = test.comparisons[0]
    if not isinstance(other.operator, cst.Equal):
        return False
    sides = (test.left, other.comparator)
    names = [side for side in sides if isinstance(side, cst.Name) and side.value == "__name__"]
    return len(names) == 1 and any(string_value(side) == "__main__" for side in sides)


def declares_local_rank(call: cst.Call) -> bool:
    """Whether `call` declares the option that `torch.distributed.launch` passes to every process."""
    if not (isinstance(call.func, cst.Attribute) and call.func.attr.value == "add_argument"):
        return False
    return any(string_value(arg.value) in ("--local_rank", "--local-rank") for arg in call.args)


def names_in(root: cst.CSTNode) -> frozenset[str]:
    """Return the names at and below `root`, without attributes and keywords of calls."""
    names = set()
    for node in nodes_of(root, cst.Name):
        names.add(node.value)
    for attribute in nodes_of(root, cst.Attribute):
        names.discard(attribute.attr.value)
    return frozenset(names)

"""Programs of a project's loops: whether a loop trains on an accelerator, by the moves of its program.

The program of a loop is the code that runs before it and in it: the functions and modules that lead to it,
and all that these run.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Set
from functools import cached_property, lru_cache
from pathlib import Path
from typing import cast

from migrate.catalogue.words import (
    CALLED_MODEL,
    COMPUTES,
    COMPUTES_ONLY,
    INDEX_NAME,
    MOVES,
    READ_METHODS,
)
from migrate.model.calls.analysis import Analysis
from migrate.model.calls.devices import is_surely_cpu, may_be_accelerator
from migrate.model.calls.kinds import External, Values
from migrate.model.calls.order import closure
from migrate.model.calls.scopes import Function, ModuleScope, Region, Scope
from migrate.model.objects.asked import is_module, only_asks
from migrate.model.objects.collating import collating_of
from migrate.model.project.decided import idle_nodes
from migrate.model.project.project import SourceModule
from migrate.syntax.walk_ast import walk

# A file without any of these words uses no accelerator.
SIGNS = re.compile(rb"cuda|xla|accelerator|accelerate|\bgpu|\bGPU")
# Functions that make a tensor on the host without a device, or an array.
MADE_ON_HOST = re.compile(
    r"torch\.(arange|eye|full|linspace|logspace|ones|rand|randint|randn|randperm|tensor|zeros|from_numpy)$"
    r"|numpy\."
)
DTYPE = re.compile(
    r"dtype$|^(b?float|half|double|int|long|short|bool|complex|uint|precision)(\d|_|$)",
    re.IGNORECASE,
)
GIVEN_DEVICES = MOVES - {"cuda"}  # their first argument is one


def _of_arguments(function: Function) -> frozenset[str]:
    """Parameters of a function, and the names of loops over them: `for batch in loader`."""
    names = {*function.parameters} - {"self", "cls"}
    for definition in function.definitions:
        for node in walk(definition):
            if isinstance(node, ast.For | ast.comprehension):
                over = {part.id for part in walk(node.iter) if isinstance(part, ast.Name)}
                if over & names:
                    names |= {part.id for part in walk(node.target) if isinstance(part, ast.Name)}
    return frozenset(names)


class ProjectPrograms:
    """Programs of a project's loops.

    Args:
        analysis: of the project.
    """

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis
        self._certain: dict[Scope, bool] = {}
        self._possible: dict[Scope, bool] = {}
        self._signs: dict[SourceModule, tuple[bool, bool]] = {}

    def on_accelerator(self, scope: Scope, region: Region) -> bool | None:
        """Whether the loop `region` in `scope` trains on an accelerator.

        Returns:
            None if it may, but the source does not decide it.
        """
        if any(self._moves(scope) for scope in self.run_from(self.run_by(region))):
            return True
        leading = self._leading_to(scope)
        program = self.run_from(leading)
        if any(self._moves(scope) for scope in program):
            return True
        if any(self._may_move(scope) for scope in program) or any(map(self._is_open, leading)):
            return None
        return False

    def run_by(self, region: Region) -> Iterator[Scope]:
        """Yield the functions and modules that a body enters."""
        for inner in self._analysis.regions(region):
            yield from self._analysis.entered(inner)

    @cached_property
    def _edges(self) -> dict[Scope, set[Scope]]:
        """Scopes that each function and module runs, passes on and imports."""
        edges: dict[Scope, set[Scope]] = {}
        for top in self._analysis.scopes.values():
            for scope in (top, *top.functions):
                edges[scope] = {
                    other
                    for root in scope.roots
                    for other in self.run_by(root)
                    if other is not scope
                }
        return edges

    @cached_property
    def _callers(self) -> dict[Scope, set[Scope]]:
        callers: dict[Scope, set[Scope]] = defaultdict(set)
        for scope, entered in self._edges.items():
            for callee in entered:
                callers[callee].add(scope)
            # An inner function: the function that makes it may pass it on.
            if isinstance(scope, Function) and isinstance(scope.parent, Function):
                callers[scope].add(scope.parent)
        return callers

    def run_from(self, starts: Iterable[Scope]) -> set[Scope]:
        """Return `starts` and all that they run."""
        return set(closure(starts, lambda scope: self._edges.get(scope, ())))

    def moved_in(self, scope: Scope, region: Region) -> int:
        """Return the line of a move to an accelerator for the loop `region` of `scope`, or 0.

        The move is in the loop, above it in the function, or in a function that the loop calls.
        """
        inside = [entry for inner in self._analysis.regions(region) for entry in inner.calls]
        called = {ast.unparse(call.func) for call, _ in inside}
        assert region.loop is not None
        for call, at in inside:
            functions = self._analysis.running[call].functions
            if self.is_move(call, at) or any(function in self.movers for function in functions):
                return call.lineno
        for call, at in self._calls(scope):
            above = call.lineno < region.loop.lineno and isinstance(call.func, ast.Attribute)
            if above and self.is_move(call, at):
                moved = ast.unparse(cast(ast.Attribute, call.func).value)
                if any(name == moved or name.startswith(f"{moved}.") for name in called):
                    return call.lineno
        return 0

    @cached_property
    def movers(self) -> frozenset[Scope]:
        """Functions that move a value to an accelerator themselves, without forwards of modules.

        A function that passes its argument to such a function counts too: `for part in batch: move(part)`.
        """
        own = frozenset({"__call__", "__init__", "forward"})
        functions = [
            function
            for top in self._analysis.scopes.values()
            for function in top.functions
            if function.name not in own
        ]
        scopes: set[Scope] = {function for function in functions if self._moves(function)}
        others = [
            function
            for function in functions
            if function not in scopes and function not in self.training
        ]
        while handing := [function for function in others if self._hands_on(function, scopes)]:
            scopes.update(handing)
            others = [function for function in others if function not in scopes]
        return frozenset(scopes)

    def _hands_on(self, function: Function, movers: set[Scope]) -> bool:
        """Whether a function passes a part of its own arguments to one of `movers`."""
        handed = [
            arg
            for call, _ in self._calls(function)
            if not movers.isdisjoint(self._analysis.running[call].functions)
            for arg in call.args
        ]
        names = _of_arguments(function) if handed else frozenset()
        return any(
            isinstance(part, ast.Name) and part.id in names for arg in handed for part in walk(arg)
        )

    @cached_property
    def readers(self) -> frozenset[Scope]:
        """Functions that read values of tensors themselves: `.item()`, `.cpu()`."""
        functions = (
            function for top in self._analysis.scopes.values() for function in top.functions
        )
        return frozenset(
            function
            for function in functions
            if any(
                isinstance(call.func, ast.Attribute)
                and call.func.attr in READ_METHODS
                and not call.args
                and call not in idle_nodes(function.module)
                and not self._is_of_host(call.func.value, scope)
                for call, scope in self._calls(function)
            )
        )

    def _is_of_host(self, node: ast.expr, scope: Scope, depth: int = 0) -> bool:
        """Whether `node` is a tensor that is made on the host, or an array: `torch.linspace(0, 1, n)`."""
        if isinstance(node, ast.Call):
            if any(keyword.arg == "device" for keyword in node.keywords):
                return False
            values = self._analysis.evaluator.values(node.func, scope)
            names = [value.name for value in values if isinstance(value, External)]
            if not names and isinstance(node.func, ast.Attribute) and node.func.attr not in MOVES:
                return self._is_of_host(node.func.value, scope, depth)  # torch.tensor(shape).prod()
            return bool(names) and all(map(MADE_ON_HOST.match, names))
        if not isinstance(node, ast.Name) or depth > 0:
            return False
        origins = list(self._analysis.evaluator.origins(node, scope))
        return bool(origins) and all(
            origin.value is not None and self._is_of_host(origin.value, origin.scope, depth + 1)
            for origin in origins
        )

    @cached_property
    def training(self) -> frozenset[Scope]:
        """Functions in which a loop trains, and the functions that run them."""
        loops = self._analysis.step_loops
        functions = (
            function for top in self._analysis.scopes.values() for function in top.functions
        )
        own: list[Scope] = [
            f for f in functions if not loops.isdisjoint(self._analysis.regions(f.region))
        ]
        return frozenset(closure(own, lambda scope: self._callers.get(scope, ())))

    def _leading_to(self, scope: Scope) -> set[Scope]:
        return set(closure([scope], lambda caller: self._callers.get(caller, ())))

    def _moves(self, scope: Scope) -> bool:
        """Whether a function or module itself moves something to an accelerator."""
        if scope not in self._certain:
            self._certain[scope] = any(self._signs_of(scope.module)) and any(
                self.is_move(call, at) for call, at in self._calls(scope)
            )
        return self._certain[scope]

    def _signs_of(self, module: SourceModule) -> tuple[bool, bool]:
        """Return whether a file holds a word for an accelerator, and whether it calls a method `to`."""
        if module not in self._signs:
            self._signs[module] = SIGNS.search(module.data) is not None, b".to(" in module.data
        return self._signs[module]

    def _may_move(self, scope: Scope) -> bool:
        """Whether a function or module asks for an accelerator, or moves a value to an unknown device."""
        if scope not in self._possible:
            self._possible[scope] = any(
                self._asks(call, at) or self._is_open_move(call, at)
                for call, at in self._calls(scope)
            )
        return self._possible[scope]

    def _calls(self, scope: Scope) -> Iterator[tuple[ast.Call, Scope]]:
        for root in scope.roots:
            for region in self._analysis.regions(root):
                yield from region.calls

    def is_move(self, call: ast.Call, scope: Scope) -> bool:
        """Whether `call` moves something to an accelerator."""
        function = call.func
        if isinstance(function, ast.Attribute) and function.attr == "cuda":
            # `build().cuda()` moves what a library's function returns; `library.cuda()` is another function.
            of_results = all("()." in name for name in self._names(call, scope))
            return not self._analysis.running[call].functions and of_results
        arg = _device_argument(call)
        if isinstance(arg, ast.Constant) and type(arg.value) is int:
            return isinstance(function, ast.Attribute) and function.attr in GIVEN_DEVICES
        if arg is None:
            return False
        values = self._analysis.evaluator.values(arg, scope)
        return may_be_accelerator(values) or _is_named_index(arg, values)

    def may_be_move(self, call: ast.Call, scope: Scope) -> bool:
        """Whether `call` moves something to an accelerator, or to an unknown device."""
        return self.is_move(call, scope) or self._is_open_move(call, scope)

    def _is_open_move(self, call: ast.Call, scope: Scope) -> bool:
        arg = _device_argument(call)
        if arg is None or isinstance(arg, ast.Constant):
            return False
        values = self._analysis.evaluator.values(arg, scope)
        if isinstance(arg, ast.Name | ast.Attribute) and (
            DTYPE.search(_last(arg)) or _is_of_torch(values)
        ):
            return False
        return not is_surely_cpu(values)

    def _asks(self, call: ast.Call, scope: Scope) -> bool:
        names = self._names(call, scope) if self._signs_of(scope.module)[0] else ()
        return any(name.startswith(("torch.cuda.", "torch_xla.")) for name in names)

    def _names(self, call: ast.Call, scope: Scope) -> list[str]:
        values = self._analysis.evaluator.values(call.func, scope)
        return [value.name for value in values if isinstance(value, External)]

    def _is_open(self, scope: Scope) -> bool:
        """Whether a function has no known caller, in a project whose scripts use accelerators."""
        if not isinstance(scope, Function) or self._callers.get(scope):
            return False
        return self.is_accelerated(scope.module.path)

    @cached_property
    def moving_files(self) -> frozenset[Path]:
        """Files that move a value to an accelerator, or to a device that the project does not show."""
        return frozenset(
            top.module.path
            for top in self._analysis.scopes.values()
            if any(self._signs_of(top.module))
            and any(
                self.is_move(call, at) or self._is_open_move(call, at)
                for root in top.all_roots
                for region in self._analysis.regions(root)
                for call, at in region.calls
            )
        )

    def names_accelerator(self, path: Path) -> bool:
        """Whether the file `path` names an accelerator."""
        return self._signs_of(self._analysis.scopes[path].module)[0]

    def accelerated_imports(self, path: Path) -> list[Path]:
        """Return the files that the file `path` imports, directly or not, and that a rewrite may concern.

        They name an accelerator, or have functions that make batches.
        """
        batches = {function.module.path for function in collating_of(self._analysis)}
        modules, imports = self._analysis.project.modules, self._analysis.project.imports
        reached = closure([path], lambda file: imports(modules[file]) if file in modules else ())
        known = (file for file in reached if file != path and file in self._analysis.scopes)
        return sorted(file for file in known if file in batches or self.names_accelerator(file))

    def is_accelerated(self, path: Path) -> bool:
        """Whether the file `path`, or a file that imports it, names an accelerator."""
        return any(
            self._signs_of(self._analysis.scopes[file].module)[0]
            for file in self._importers_of(path)
        )

    def is_run_without(self, path: Path) -> bool:
        """Whether a program that names no accelerator imports the file `path`, directly or indirectly.

        Programs are the scripts of the project that no other file imports, and tests.
        """
        importers = self._analysis.project.importers
        return any(
            (not importers.get(file) or TEST.match(file.name)) and not self._registers(file)
            for file in self._importers_of(path) - {path}
            if file.name not in ("__init__.py", "setup.py")
        )

    def _registers(self, path: Path) -> bool:
        """Whether the file `path` names an accelerator, or imports a file that does."""
        module = self._analysis.scopes[path].module
        return self._signs_of(module)[0] or b"torch_xla" in module.data or b"shims" in module.data

    def _importers_of(self, path: Path) -> set[Path]:
        """Return the file `path` and all files that import it, directly or indirectly."""
        importers = self._analysis.project.importers
        return set(closure([path], lambda importer: importers.get(importer, ())))


@lru_cache(maxsize=2)
def programs_of(analysis: Analysis) -> ProjectPrograms:
    """Return the programs of a project's loops, computed once for all files."""
    return ProjectPrograms(analysis)


# What pytest runs.
TEST = re.compile(r"(test_.*|.*_test|conftest)\.py")
# Without one of these in its bytes a file has no loop that only evaluates.
EVALUATES = re.compile(rb"no_grad|inference_mode|\.eval\(")


def may_evaluate(
    analysis: Analysis, region: Region, top: ModuleScope, forwards: Set[Scope], free: Set[Scope]
) -> bool:
    """Whether a loop calls a model, in a file that computes without gradients.

    The origin of the callee decides, then its uses in the file, otherwise its name. A call of one of
    `forwards`, the functions that run a model, counts too; in any file a call of one of `free`, those of them
    that take no gradients.
    """
    if EVALUATES.search(top.module.data) is None:
        return bool(free) and any(
            not free.isdisjoint(analysis.running[call].functions)
            for inner in analysis.regions(region)
            for call, _ in inner.calls
        )
    modules = _receivers_of_module_methods(top)
    return any(
        (_is_named_model(call.func) and not only_asks(call, analysis))
        or (bool(modules) and ast.unparse(call.func) in modules)
        or is_module(call.func, scope, analysis)
        or not forwards.isdisjoint(analysis.running[call].functions)
        for inner in analysis.regions(region)
        for call, scope in inner.calls
        if call.args or call.keywords
    )


def _is_named_model(func: ast.expr) -> bool:
    """Whether the callee has the name of a model: `model(x)`, `models[0](x)`, `model.encode_text(x)`."""
    if isinstance(func, ast.Subscript):
        while isinstance(func, ast.Subscript):
            func = func.value
        return CALLED_MODEL.fullmatch(_called(func).removesuffix("s")) is not None
    if isinstance(func, ast.Attribute) and COMPUTES.fullmatch(func.attr):
        if COMPUTES_ONLY.fullmatch(func.attr):
            return True
        return CALLED_MODEL.fullmatch(_called(func.value)) is not None
    return CALLED_MODEL.fullmatch(_called(func)) is not None


def _called(func: ast.expr) -> str:
    return getattr(func, "attr", "") or getattr(func, "id", "")


@lru_cache(maxsize=2)
def _receivers_of_module_methods(top: ModuleScope) -> frozenset[str]:
    """Return the receivers of module methods: `x.eval()`, and `x.cuda()` as a statement."""
    nodes = top.module.nodes
    alone = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    return frozenset(
        ast.unparse(node.func.value)
        for node in nodes
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and (
            (node.func.attr == "eval" and not node.args)
            or (node.func.attr in MOVES and id(node) in alone)
        )
    )


def _is_named_index(arg: ast.expr, values: Values) -> bool:
    """Whether a device argument is named like an index, and nothing known contradicts."""
    if not isinstance(arg, ast.Name | ast.Attribute) or not INDEX_NAME.fullmatch(_last(arg)):
        return False
    return not is_surely_cpu(values) and not _is_of_torch(values)  # rank = torch.bfloat16


def _is_of_torch(values: Values) -> bool:
    return any(isinstance(value, External) and value.name.startswith("torch.") for value in values)


def _last(node: ast.Name | ast.Attribute) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id


def _device_argument(call: ast.Call) -> ast.expr | None:
    """Return the argument of `call` that may be a device."""
    named = next((k.value for k in call.keywords if k.arg == "device"), None)
    if named is not None:
        return named
    is_to = isinstance(call.func, ast.Attribute) and call.func.attr in GIVEN_DEVICES
    first = call.args[0] if is_to and call.args else None
    return None if isinstance(first, ast.Starred) else first

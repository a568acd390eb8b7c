"""Optimizers, by the calls that make them, and whether their model is on the accelerator by then.

An optimizer is an instance of a class that derives from `torch.optim.Optimizer`, including a class chosen at
run time. An object known only by name counts by its use, and by its name if nothing uses it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path

from migrate.catalogue.words import (
    KEEPING,
    LIBRARY_OPTIMIZER,
    MODEL,
    OPTIMIZER,
    SCHEDULER,
    TORCH_OPTIMIZER,
    TORCH_OPTIMIZER_BASE,
)
from migrate.model.calls.analysis import Analysis
from migrate.model.calls.callers import callers_of
from migrate.model.calls.devices import is_surely_cpu
from migrate.model.calls.effect import Effect
from migrate.model.calls.kind import Kind
from migrate.model.calls.kinds import UNKNOWN, DeviceValue, External
from migrate.model.calls.scopes import Class, Function, ModuleScope, Scope
from migrate.model.calls.training import is_optimizer_value
from migrate.model.objects.asked import is_module
from migrate.model.objects.handed import handed_with
from migrate.model.objects.objects import WRAPPERS, Origin, end, objects_of
from migrate.model.objects.programs import programs_of
from migrate.model.objects.separate_processes import scripts_of
from migrate.syntax.walk_ast import walk

# Functions of torch that compute with tensors.
TORCH_FUNCTION = re.compile(r"torch\.(nn\.functional\.|linalg\.|special\.|fft\.)?[a-z_]\w*")
SWITCH = "torch.__future__.set_swap_module_params_on_conversion"
SCHEDULES = re.compile(r"torch\.optim\.lr_scheduler\.")
SHARDS = ".FullyShardedDataParallel"
SHARDS_IN_PLACE = ".fully_shard"
SHARD_WORDS = re.compile(rb"fully_shard|FullyShardedDataParallel")
LOADS = b".load_state_dict("
# Names in the annotation of settings.
SETTINGS = re.compile(r"\b(dict|Dict|Mapping|str|int|float|bool|list|List|\w*Conf(ig)?)\b")
# Calls that give a parameter an attribute or a hook, in a loop over parameters.
MARKS = re.compile(rb"for [^\n]*parameters\(")
HOOKS = frozenset({"register_hook", "register_post_accumulate_grad_hook"})
# Calls that return the parameters of a module.
PARAMETERS = frozenset({"parameters", "named_parameters"})
# Builtins that run an iterator to its end and keep its elements, and methods that add to a collection.
COLLECTS = frozenset({"dict", "frozenset", "list", "set", "sorted", "tuple"})
LAZY = frozenset({"chain", "enumerate", "filter", "iter", "map", "reversed", "zip"})
FILLS = frozenset({"add", "append", "extend", "insert", "setdefault", "update"})
NAMED = ast.Name | ast.Attribute
# Methods that only modules have, among objects that are moved.
OF_MODULES = frozenset(
    {
        "eval",
        "train",
        "parameters",
        "named_parameters",
        "modules",
        "named_modules",
        "load_state_dict",
    }
)
USED_AS_MODULE = OF_MODULES | {"state_dict"}
# Methods of optimizers; their result is no optimizer.
OF_OPTIMIZERS = frozenset({"add_param_group", "load_state_dict", "state_dict", "step", "zero_grad"})
ASKED_OPTIMIZERS = OF_OPTIMIZERS | {"backward", "defaults", "optimizer", "param_groups", "state"}
BUILDS = ("__init__", "__post_init__", "setup")
DEEPEST = 6  # maximum depth of calls down to a move, and up to the callers of a function
MOST_GOALS = 8  # maximum number of distinct ways to an optimizer
EXPRESSIONS = (
    40  # maximum number of expressions searched for the class or the model of an optimizer
)

Position = tuple[int, int]
Call = tuple[ast.Call, Scope]


@dataclass(frozen=True)
class Early:
    """Optimizer that is made before its model is on the accelerator.

    Args:
        moves: the files and lines of the moves that come later.
        at_moves: whether torch's switch is set at these moves; otherwise where the optimizer is made.
        on_meta: whether one of them replaces the parameters on CUDA as well, as the model is on "meta".
        taken: the file and line where its parameters are collected, if only this comes before the moves.
    """

    moves: tuple[tuple[Path, int], ...]
    at_moves: bool
    on_meta: bool = False
    taken: tuple[Path, int] | None = None


@dataclass(frozen=True)
class FileOptimizers:
    """Optimizers that one file makes, and its moves of models that already have one.

    Args:
        created: the calls that make an optimizer, of any class.
        settled: those of them whose model is on the accelerator by then, or keeps its parameters.
        early: those whose model moves only later.
        moves: the moves of models whose optimizer may exist already: the optimizers of this file that do, and
            whether there are others, from other files or unknown callers.
        handed: the moves of models that are passed, together with an unknown parameter, to code outside of
            the project: the parameter, and the code.
        marked: the calls of `parameters()` of a loop that gives parameters attributes or hooks, whose model
            moves only later.
        taken: the moves before which the parameters of an optimizer are collected, and none is made.
        sharded_on_host: the calls of FSDP2 that get a model which is made on the host and has not moved.
        leaves: the moves of models to the host that come back and train with the same optimizer: the file and
            line of the optimizer.
    """

    created: frozenset[Position] = frozenset()
    settled: frozenset[Position] = frozenset()
    early: Mapping[Position, Early] = field(default_factory=dict)
    moves: Mapping[Position, tuple[frozenset[Position], bool]] = field(default_factory=dict)
    handed: Mapping[Position, tuple[str, str]] = field(default_factory=dict)
    marked: frozenset[Position] = frozenset()
    taken: frozenset[Position] = frozenset()
    sharded_on_host: frozenset[Position] = frozenset()
    leaves: Mapping[Position, tuple[Path, int]] = field(default_factory=dict)


class ProjectOptimizers:
    """Optimizers of a project.

    Args:
        analysis: of the project.
    """

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis
        self._evaluator = analysis.evaluator
        self._objects = objects_of(analysis)
        self._handed_on: dict[ast.Call, tuple[str, str]] = {}  # filled with `_given_both`
        self._bound_to: dict[tuple[ast.expr, int], list[tuple[ast.expr, Scope]]] = {}
        self._with_parameters: dict[ast.expr, list[ast.Call]] = {}
        self._taken_at: dict[ast.Call, tuple[Path, int]] = {}  # filled with `_late_moves`
        self._loops_of: dict[ModuleScope, dict[ast.Call, ast.For]] = {}
        self._used_in_place: dict[ModuleScope, set[ast.expr]] = {}

    def of_file(self, top: ModuleScope, alone: bool) -> FileOptimizers:
        """Return the optimizers of a file; `alone`: whether only this file is rewritten."""
        if not self._may_be_early:
            calls = [call for call, at in self._made if at.top is top]
            return FileOptimizers(
                frozenset(_at(call, top) for call in calls),
                frozenset(_at(call, top) for call in calls if call not in self._late_moves),
                sharded_on_host=frozenset(self._sharded_on_host(top)),
            )
        makers, settled = set(), set()
        early: dict[Position, Early] = {}
        moves: dict[Position, tuple[set[Position], list[bool]]] = {}
        taken: dict[Position, bool] = {}
        for call, scope in self._made:
            here = scope.top is top
            if here:
                makers.add(_at(call, top))
            late = self._late_moves.get(call)
            if late is None:
                if here:
                    settled.add(_at(call, top))
                continue
            is_own = self._is_of_own_model(call, scope)
            if any(self._objects.replaces_on_cuda(move, at) for move, at in late):
                if here:
                    lines = {(at.module.path, move.lineno) for move, at in late}
                    early[_at(call, top)] = Early(tuple(sorted(lines)), True, on_meta=True)
                continue
            elsewhere = any(at.top is not scope.top for _, at in late)
            in_lambda = any(at.name == "<lambda>" for _, at in late)
            at_moves = not is_own and not in_lambda and not (alone and elsewhere)
            if here and late:
                places = sorted({(at.module.path, call.lineno) for call, at in late})
                early[_at(call, top)] = Early(
                    tuple(places), at_moves, taken=self._taken_at.get(call)
                )
            for late_move, at in late:
                if at.top is top:
                    place = _at(late_move, top)
                    taken[place] = taken.get(place, True) and call in self._taken_at
                    own, others = moves.setdefault(place, (set(), []))
                    if here:
                        own.add(_at(call, top))
                    else:
                        others.append(at_moves)
        for move, at in self._given_both:
            if at.top is top:
                moves.setdefault(_at(move, top), (set(), []))[1].append(True)
        scopes = dict(self._moves)
        handed = {
            _at(move, top): handed
            for move, handed in self._handed_on.items()
            if scopes[move].top is top
        }
        return FileOptimizers(
            frozenset(makers),
            frozenset(settled),
            early,
            {place: (frozenset(own), any(others)) for place, (own, others) in moves.items()},
            handed,
            frozenset(self._marked(top)),
            frozenset(place for place, only in taken.items() if only),
            frozenset(self._sharded_on_host(top)),
            {_at(move, top): line for move, (at, line) in self._leaving.items() if at.top is top},
        )

    def _sharded_on_host(self, top: ModuleScope) -> Iterator[Position]:
        """Yield the calls of FSDP2 in a file whose model is seen to be made on the host, and not moved."""
        if SHARDS_IN_PLACE[1:].encode() not in top.module.data:
            return
        for call, scope in self._evaluator.calls():
            if scope.top is top and self._shards_on_device(call, scope):
                values = self._evaluator.values(call.func, scope)
                in_place = any(
                    isinstance(value, External) and value.name.endswith(SHARDS_IN_PLACE)
                    for value in values
                )
                model = call.args[0]
                if (
                    in_place
                    and not self._is_for_cpu(call, scope)
                    and any(
                        goal.sites and not goal.on_meta
                        for goal in self._unmoved(call, scope, model, scope)
                    )
                ):
                    yield _at(call, top)

    def _marked(self, top: ModuleScope) -> Iterator[Position]:
        """Yield the ends of the `parameters()` calls that a loop iterates over before the model moves."""
        if MARKS.search(top.module.data) is None:
            return
        loops = {
            part
            for node in top.module.nodes
            if isinstance(node, ast.For) and _marks(node)
            for part in walk(node.iter)
            if isinstance(part, ast.Call) and _is_parameters(part)
        }
        for call, scope in self._evaluator.calls() if loops else ():
            if call not in loops or not isinstance(call.func, ast.Attribute):
                continue
            model = call.func.value
            goal = self._goal(model, scope, call, scope, ())
            unmoved = [] if goal.moved else self._unmoved(call, scope, model, scope)
            if any(
                self._moves_later(move, to, goal)
                for move, to in (self._moves if unmoved else ())
                if not scripts_of(self._analysis).are_apart(to, scope)
                for goal in unmoved[:MOST_GOALS]
            ):
                yield _at(call, top)

    @cached_property
    def _may_be_early(self) -> bool:
        return bool(self._moves)

    @cached_property
    def _made(self) -> list[Call]:
        """Calls that make an optimizer."""
        return [
            (call, scope)
            for call, scope in self._evaluator.calls()
            if self._is_made_by(call, scope)
        ]

    @cached_property
    def _moves(self) -> list[Call]:
        """Calls that move a value to an accelerator, or may."""
        return [
            (call, scope)
            for call, scope in self._evaluator.calls()
            if self._objects.is_move(call, scope) and not self._runs_own_method(call)
        ]

    def _is_made_by(self, call: ast.Call, scope: Scope) -> bool:
        values = self._evaluator.values(call.func, scope)
        names = [value.name for value in values if isinstance(value, External)]
        if any(TORCH_OPTIMIZER.fullmatch(name) for name in names):
            return True
        for value in values:
            if isinstance(value, Class):
                bases = self._evaluator.external_bases(value)
                if any(TORCH_OPTIMIZER_BASE.match(base) for base in bases):
                    return True
        if self._analysis.running[call].functions:
            return False
        # Names first: to follow the arguments takes longest.
        if any(LIBRARY_OPTIMIZER.search(n) and not SCHEDULER.search(n) for n in names):
            return self._gives_parameters(call, scope)
        if names or _is_of_an_optimizer(call.func):
            return False
        return self._gives_parameters(call, scope) and self._is_chosen(call.func, scope)

    def _is_chosen(self, function: ast.expr, scope: Scope) -> bool:
        """Whether the class `function` is chosen among torch's: `getattr(torch.optim, name)`."""
        nodes: set[ast.expr] = set()
        for node, at in self._behind(function, scope):
            for part in walk(node):  # the callee comes before the names in it
                if isinstance(part, ast.Call):
                    nodes.add(part.func)
                if part not in nodes and isinstance(part, ast.Name | ast.Attribute):
                    for value in self._evaluator.values(part, at):
                        if isinstance(value, External) and (
                            value.name == "torch.optim" or TORCH_OPTIMIZER.fullmatch(value.name)
                        ):
                            return True
        return False

    def _behind(self, node: ast.expr, scope: Scope) -> Iterator[tuple[ast.expr, Scope]]:
        """Yield `node`, and the values of the names and attributes in it."""
        seen: set[int] = set()
        waiting = [(node, scope)]
        while waiting and len(seen) < EXPRESSIONS:
            current, at = waiting.pop()
            if id(current) in seen:
                continue
            seen.add(id(current))
            yield current, at
            waiting += self._bound(current, at)

    def _bound(self, node: ast.expr, scope: Scope) -> list[tuple[ast.expr, Scope]]:
        """Return the values of the names and attributes in `node`; cached, since it is asked many times."""
        key = node, id(scope)
        if key not in self._bound_to:
            self._bound_to[key] = [
                bound for part in walk(node) for bound in self._bound_part(part, scope)
            ]
        return self._bound_to[key]

    def _bound_part(self, part: ast.AST, scope: Scope) -> Iterator[tuple[ast.expr, Scope]]:
        if isinstance(part, ast.Name):
            for binding in self._evaluator.bindings_of(part.id, scope):
                if binding.value is not None:
                    yield binding.value, binding.scope
                elif binding.kind == "param" and isinstance(binding.scope, Function):
                    for argument in self._objects.arguments(binding.scope, binding.name):
                        if argument.node is not None:
                            yield argument.node, argument.scope
        elif isinstance(part, ast.Attribute):
            for member in self._evaluator.members_of(part.value, part.attr, scope):
                if member.value is not None:
                    yield member.value, member.scope

    def _gives_parameters(self, call: ast.Call, scope: Scope) -> bool:
        return any(True for _ in self._weights(call, scope))

    def _weights(self, call: ast.Call, scope: Scope) -> Iterator[Call]:
        """Yield the `parameters()` calls whose results are arguments of `call`."""
        for arg in _arguments(call):
            for node, at in self._behind(arg, scope):
                for part in self._parameters_in(node):
                    yield part, at

    def _parameters_in(self, node: ast.expr) -> list[ast.Call]:
        """Return the `parameters()` calls in an expression; cached, since it is asked many times."""
        if node not in self._with_parameters:
            self._with_parameters[node] = [
                part for part in walk(node) if isinstance(part, ast.Call) and _is_parameters(part)
            ]
        return self._with_parameters[node]

    def _models(self, call: ast.Call, scope: Scope) -> Iterator[tuple[ast.expr, Scope]]:
        """Yield the modules whose parameters the optimizer `call` gets."""
        seen: set[int] = set()
        has_moved = False
        for weights, at in self._weights(call, scope):
            if id(weights) not in seen and isinstance(weights.func, ast.Attribute):
                seen.add(id(weights))
                has_moved = True
                yield weights.func.value, at
        if has_moved:
            return
        for arg in _arguments(call):
            for node, at in self._behind(arg, scope):
                for part in walk(node):
                    if isinstance(part, ast.Name | ast.Attribute) and is_module(
                        part, at, self._analysis
                    ):
                        has_moved = True
                        yield part, at
        if has_moved:
            return
        for other, at in self._calls(scope):  # a list that a loop over the parameters has filled
            if _is_parameters(other) and end(other) < end(call):
                assert isinstance(other.func, ast.Attribute)
                yield other.func.value, at

    @cached_property
    def _late_moves(self) -> dict[ast.Call, list[Call]]:
        """Later moves of the model of each optimizer, without optimizers whose model has already moved."""
        late_moves: dict[ast.Call, list[Call]] = {}
        for call, scope in self._made:
            late: dict[ast.Call, Scope] = {}
            settled = True
            models = list(self._models(call, scope))
            for model, at in models:
                goal = self._goal(model, at, call, scope, ())
                unmoved = [] if goal.moved else self._unmoved(call, scope, model, at)
                if not unmoved:
                    continue
                settled = False
                goals = unmoved if len(unmoved) <= MOST_GOALS else [goal]
                late |= self._later(goals, scope)
            if settled:
                late = self._taken_early(call, scope)
                settled = not late
            kept = {move for move, at in late.items() if self._is_kept(move, at, call, scope)}
            if late and kept == late.keys():
                continue
            if not models or not settled:
                late_moves[call] = [(move, at) for move, at in late.items() if move not in kept]
        return late_moves

    @cached_property
    def _leaving(self) -> dict[ast.Call, tuple[Scope, tuple[Path, int]]]:
        """Moves of a model to the host that are followed by a move back and by steps of its optimizer.

        On CUDA the parameters stay the same objects; on XLA each of the two moves makes new ones.
        """
        leaving: dict[ast.Call, tuple[Scope, tuple[Path, int]]] = {}
        away = [(call, at) for call, at in self._evaluator.calls() if self._leaves(call, at)]
        models = {
            call: [
                self._goal(model, at, call, scope, ()) for model, at in self._models(call, scope)
            ]
            for call, scope in (self._made if away else ())
        }
        for move, at in away:
            optimizers = [
                (call, scope)
                for call, scope in self._made
                if not scripts_of(self._analysis).are_apart(at, scope)
                and any(self._moves_later(move, at, model) for model in models[call])
                and not self._is_kept(move, at, call, scope)
            ]
            trained = [model for call, _ in optimizers for model in models[call]]
            back = [
                m for m in self._moves if any(self._moves_later(*m, model) for model in trained)
            ]
            if back and self._comes_back((move, at), back, optimizers):
                first, scope = optimizers[0]
                leaving[move] = at, (scope.module.path, first.lineno)
        return leaving

    def _leaves(self, call: ast.Call, scope: Scope) -> bool:
        """Whether `call` moves a module to the host."""
        function = call.func
        if not isinstance(function, ast.Attribute) or function.attr not in ("cpu", "to"):
            return False
        if function.attr == "to":
            arg = next((k.value for k in call.keywords if k.arg == "device"), (*call.args, None)[0])
            is_text = isinstance(arg, ast.Constant) and arg.value == "cpu"
            if arg is None or not (is_text or is_surely_cpu(self._evaluator.values(arg, scope))):
                return False
        return call in self._in_place(scope.top) or is_module(function.value, scope, self._analysis)

    def _in_place(self, top: ModuleScope) -> set[ast.expr]:
        """Return what a file uses as only a module can be: without the result, or for its state."""
        if top not in self._used_in_place:
            self._used_in_place[top] = {
                node.value
                for node in top.module.nodes
                if isinstance(node, ast.Expr)
                or (isinstance(node, ast.Attribute) and node.attr in USED_AS_MODULE)
            }
        return self._used_in_place[top]

    def _comes_back(self, away: Call, back: list[Call], optimizers: list[Call]) -> bool:
        """Whether a model that leaves by `away` comes back and is trained by an optimizer that it had."""
        leaves = self._runners(*away)
        moves = [self._runners(*move) for move in back]
        if not any(
            self._follows(first, second, scope)
            for scope, first in leaves.items()
            for runners in moves
            for second in runners.get(scope, ())
        ):
            return False
        makers = [self._runners(*call) for call in optimizers]
        for scope, first in leaves.items():
            again = [call for runners in makers for call in runners.get(scope, ())]
            for step, _ in self._calls(scope):
                if Effect.STEP in self._analysis.running[step].effect:
                    around = self._follows(first, step, scope)
                    if around and not any(_is_between(call, around) for call in again):
                        return True
        return False

    def _runners(self, call: ast.Call, scope: Scope) -> dict[Scope, list[ast.Call]]:
        """Return the calls that run `call`, itself included, by the code that they are in."""
        runners: dict[Scope, list[ast.Call]] = {scope: [call]}
        waiting = [scope]
        for _ in range(DEEPEST):
            functions = [at for at in waiting if isinstance(at, Function)]
            waiting = []
            for function in functions:
                for caller, at in callers_of(self._analysis).get(function, ()):
                    if at not in runners:
                        waiting.append(at)
                    runners.setdefault(at, []).append(caller)
        return runners

    def _follows(
        self, first: list[ast.Call], second: ast.Call, scope: Scope
    ) -> tuple[Position, Position] | None:
        """Return the range of the code from one of `first` to `second`, or of the loop that has both."""
        for call in first:
            loops = [
                around
                for node in scope.top.module.nodes
                if isinstance(node, ast.For | ast.While)
                and (around := (_start(node), (node.end_lineno or 0, node.end_col_offset or 0)))
                and all(_is_between(inner, around) for inner in (call, second))
            ]
            if loops:
                return max(loops)
            if end(call) < end(second):
                return end(call), end(second)
        return None

    def _later(self, goals: list[Origin], scope: Scope) -> dict[ast.Call, Scope]:
        """Return the moves of an object that is made in one of the ways `goals`."""
        return {
            move: to
            for move, to in self._moves
            if move not in self._of_tensors
            and not scripts_of(self._analysis).are_apart(to, scope)
            and any(self._moves_later(move, to, goal) for goal in goals)
        }

    def _runs_own_method(self, move: ast.Call) -> bool:
        """Whether `move` runs methods of the project that move by moves of their own, if at all.

        Where they move the optimizer's model, these moves are late.
        """
        functions = self._analysis.running[move].functions
        return bool(functions) and not any(
            isinstance(call.func, ast.Attribute)
            and isinstance(call.func.value, ast.Call)
            and isinstance(call.func.value.func, ast.Name)
            and call.func.value.func.id == "super"
            for function in functions
            for call, _ in self._calls(function)
        )

    def _taken_early(self, call: ast.Call, scope: Scope) -> dict[ast.Call, Scope]:
        """Return the moves of a model whose parameters the optimizer `call` gets in a list made before."""
        late: dict[ast.Call, Scope] = {}
        for weights, at in self._collected(call, scope):
            assert isinstance(weights.func, ast.Attribute)
            model = weights.func.value
            if self._goal(model, at, weights, at, ()).moved:
                continue
            moves = self._later(self._unmoved(weights, at, model, at)[:MOST_GOALS], scope)
            if moves:
                self._taken_at.setdefault(call, (at.module.path, weights.lineno))
                late |= moves
        return late

    def _collected(self, call: ast.Call, scope: Scope) -> Iterator[Call]:
        """Yield the `parameters()` calls whose elements a list has before the optimizer `call` gets it.

        A generator has none yet: it takes the parameters that the module has when the optimizer is made.
        """
        seen: set[int] = set()
        waiting: list[tuple[ast.expr, Scope]] = [(arg, scope) for arg in _arguments(call)]
        direct = {id(arg) for arg, _ in waiting}
        while waiting and len(seen) < EXPRESSIONS:
            node, at = waiting.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            if id(node) not in direct:
                for weights in self._parameters_in(node):
                    if self._is_collected(node, weights, at):
                        yield weights, at
            texts = {ast.unparse(part) for part in walk(node) if isinstance(part, NAMED)}
            for weights, loop in self._loops(at.top).items() if texts else ():
                if _fills(loop, texts) and any(other is weights for other, _ in self._calls(at)):
                    yield weights, at
            waiting += self._bound(node, at)
            for part in walk(node):
                if isinstance(part, ast.Call):
                    functions = self._analysis.running[part].functions
                    waiting += [(value, f) for f in functions for value in f.returns]

    def _is_collected(
        self, node: ast.AST, weights: ast.Call, at: Scope, ends: bool = False
    ) -> bool:
        """Whether an expression runs the iterator `weights` in it to its end, and keeps the elements."""
        if node is weights:
            return ends
        if isinstance(node, ast.Lambda):
            return False
        if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            element = node.value if isinstance(node, ast.DictComp) else node.elt
            names = {_parameter_of(generator.target) for generator in node.generators}
            if any(_keeps(element, name) for name in names):
                ends = ends or not isinstance(node, ast.GeneratorExp)
                return any(self._is_collected(g.iter, weights, at, ends) for g in node.generators)
            return self._is_collected(element, weights, at, ends)
        if isinstance(node, ast.Call):
            if self._is_collected(node.func, weights, at, ends):
                return True
            is_builtin = isinstance(node.func, ast.Name) and node.func.id in COLLECTS
            if node in self._analysis.running:
                is_builtin = is_builtin or bool(self._analysis.running[node].functions)
            lazy = isinstance(node.func, ast.Name) and node.func.id in LAZY
            if not (is_builtin or lazy):
                return False
            arguments = _arguments(node)
            return any(self._is_collected(a, weights, at, ends or is_builtin) for a in arguments)
        ends = ends or isinstance(node, ast.Starred)
        return any(
            self._is_collected(child, weights, at, ends) for child in ast.iter_child_nodes(node)
        )

    def _loops(self, top: ModuleScope) -> dict[ast.Call, ast.For]:
        """Return the loops of a file over the parameters of a module, by the calls that return them."""
        if top not in self._loops_of:
            self._loops_of[top] = {
                part: node
                for node in top.module.nodes
                if isinstance(node, ast.For)
                for part in walk(node.iter)
                if isinstance(part, ast.Call) and _is_parameters(part)
            }
        return self._loops_of[top]

    def _goal(
        self,
        model: ast.expr,
        at: Scope,
        call: ast.Call,
        scope: Scope,
        stack: tuple[Call, ...],
    ) -> Origin:
        before = end(call) if at is scope else end(model)
        return self._objects.origin(model, at, stack if at is scope else (), before)

    def _moves_later(self, move: ast.Call, scope: Scope, goal: Origin) -> bool:
        assert isinstance(move.func, ast.Attribute)
        moved = self._objects.origin(move.func.value, scope, (), end(move))
        return moved.touches(goal)

    def has_moved(self, model: ast.expr, call: ast.Call, scope: Scope) -> bool:
        """Whether `model` has moved to the accelerator before `call`, on every way that leads there."""
        return not self._unmoved(call, scope, model, scope)

    def _unmoved(
        self,
        call: ast.Call,
        scope: Scope,
        model: ast.expr,
        at: Scope,
        stack: tuple[Call, ...] = (),
        seen: frozenset[Scope] = frozenset(),
    ) -> list[Origin]:
        """Return the model, on each way to the first call of `stack`, if it has not moved on that way.

        Two programs that share a function which makes the optimizer each have their own model: a way through
        one of them is none of the model that the other one makes.
        """
        maker = call
        here, around = stack[0] if stack else (maker, scope)
        if stack and scripts_of(self._analysis).are_apart(around, at):
            return []  # the program of another script, which has no such model
        goal = self._goal(model, at, maker, scope, stack)
        if goal.moved or self._moved_in(around, end(here), goal, stack[1:]):
            return []
        if not isinstance(around, Function) or around in seen or len(stack) > DEEPEST:
            return [goal]
        callers = [
            caller
            for caller in callers_of(self._analysis).get(around, ())
            if caller[1] is not around
        ]
        if built := self._moving_builds(around, goal):
            # What a constructor moves has moved for all other callers; for itself, its order counts.
            callers = [caller for caller in callers if not built.isdisjoint(self._runners(*caller))]
            if not callers:
                return []
        origins: list[Origin] = [] if callers else [goal]
        for caller in callers:
            origins += self._unmoved(call, scope, model, at, (caller, *stack), seen | {around})
            if len(origins) > MOST_GOALS:
                break
        return origins

    def _moving_builds(self, method: Function, goal: Origin) -> set[Scope]:
        """Return the constructors that move `goal`, for a method that is none itself."""
        if method.owner is None or method.name in BUILDS:
            return set()
        built = (self._evaluator.method(method.owner, name) for name in BUILDS)
        return {
            builder
            for builder in built
            if builder is not None and self._moved_in(builder, None, goal, ())
        }

    def _moved_in(
        self, scope: Scope, until: Position | None, goal: Origin, stack: tuple[Call, ...]
    ) -> bool:
        """Whether the calls of `scope` that end before `until` move all of `goal`."""
        return any(
            self._moves_all(other, at, goal, stack, 0)
            for other, at in self._calls(scope)
            if until is None or end(other) < until
        )

    def _moves_all(
        self, call: ast.Call, scope: Scope, goal: Origin, stack: tuple[Call, ...], depth: int
    ) -> bool:
        """Whether `call`, or a function it runs, moves all of `goal`."""
        if self._objects.is_move(call, scope):
            assert isinstance(call.func, ast.Attribute)
            moved = self._objects.origin(call.func.value, scope, stack, end(call))
            if moved.covers(goal):
                return True
        if not goal.on_meta and self._shards_on_device(call, scope):  # "meta" stays "meta"
            moved = self._objects.origin(call.args[0], scope, stack, end(call))
            if moved.covers(goal):
                return True
        if depth >= DEEPEST:
            return False
        inner = (*stack, (call, scope))[-4:]
        return any(
            self._moves_all(other, at, goal, inner, depth + 1)
            for function in self._analysis.running[call].functions
            if function in self._moving
            for other, at in self._calls(function)
        )

    def _shards_on_device(self, call: ast.Call, scope: Scope) -> bool:
        """Whether a call shards a model and moves it: `FSDP(model, device_id=…)`, `fully_shard(model)`."""
        if not call.args:
            return False
        to_device = any(keyword.arg == "device_id" for keyword in call.keywords)
        # FSDP2 moves to the device of its mesh, and its parameters are new objects.
        ends = (SHARDS, SHARDS_IN_PLACE) if to_device else SHARDS_IN_PLACE
        values = self._evaluator.values(call.func, scope)
        return any(isinstance(v, External) and v.name.endswith(ends) for v in values)

    def _is_for_cpu(self, call: ast.Call, scope: Scope) -> bool:
        """Whether the mesh of an FSDP2 call is plainly of CPUs: `init_device_mesh("cpu", (2,))`.

        The mesh may be an argument of the call, or bound before: `partial(fully_shard, mesh=mesh)`.
        """
        calls = [(call, scope), *self._behind(call.func, scope)]
        return any(
            isinstance(node, ast.Call)
            and any(getattr(arg, "value", None) == "cpu" for arg in _arguments(node))
            for binding, at in calls
            if isinstance(binding, ast.Call)
            for keyword in binding.keywords
            if keyword.arg == "mesh"
            for node, _ in self._behind(keyword.value, at)
        )

    @cached_property
    def _moving(self) -> set[Scope]:
        """Functions that move something, or run a function that does."""
        scopes: set[Scope] = {at for _, at in self._moves if isinstance(at, Function)}
        sharding = {
            top for top in self._analysis.scopes.values() if SHARD_WORDS.search(top.module.data)
        }
        scopes |= {
            at
            for call, at in self._evaluator.calls()
            if isinstance(at, Function) and at.top in sharding and self._shards_on_device(call, at)
        }
        callers = callers_of(self._analysis)
        waiting = [scope for scope in scopes if isinstance(scope, Function)]
        while waiting:
            for _, at in callers.get(waiting.pop(), ()):
                if at not in scopes:
                    scopes.add(at)
                    if isinstance(at, Function):
                        waiting.append(at)
        return scopes

    def _calls(self, scope: Scope) -> list[Call]:
        if scope not in self._calls_of:
            self._calls_of[scope] = [
                call
                for root in scope.roots
                for region in self._analysis.regions(root)
                for call in region.calls
                if call[1] is scope
            ]
        return self._calls_of[scope]

    @cached_property
    def _calls_of(self) -> dict[Scope, list[Call]]:
        return {}

    @cached_property
    def _switches(self) -> list[tuple[ast.Call, Scope, bool]]:
        return [
            (call, scope, getattr(call.args[0], "value", None) is True)
            for call, scope in self._evaluator.calls()
            if call.args
            and b"set_swap_module_params_on_conversion" in scope.top.module.data
            and External(SWITCH) in self._evaluator.values(call.func, scope)
        ]

    def _is_kept(self, move: ast.Call, at: Scope, call: ast.Call, scope: Scope) -> bool:
        """Whether torch keeps the parameter objects in `move`."""
        before = [
            (end(switch), on)
            for switch, to, on in self._switches
            if to is at and end(switch) < end(move)
        ]
        if before:
            return max(before)[1]
        tops = {at.top, scope.top}
        return any(
            on and to is not at and to.top in tops and (to is not scope or end(switch) < end(call))
            for switch, to, on in self._switches
        )

    def _is_of_own_model(self, call: ast.Call, scope: Scope) -> bool:
        """Whether the model is made in the same function: torch's switch is then set at the optimizer."""
        match call.args[:1]:
            case [ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="parameters"))]:
                bindings = scope.bindings.get(name, [])
                earlier = [b for b in bindings if b.value is None or end(b.value) < end(call)]
                return bool(earlier) and all(
                    b.kind == "value"
                    and isinstance(b.value, ast.Call)
                    and not (
                        isinstance(b.value.func, ast.Name)
                        and any(
                            isinstance(value, Function)
                            for value in self._evaluator.values(b.value.func, b.scope)
                        )
                    )
                    for b in earlier
                )
        return False

    @cached_property
    def _given_both(self) -> list[Call]:
        """Moves of models without a known caller, in functions that also get an optimizer."""
        calls: list[Call] = []
        for call, scope in self._moves:
            function = call.func
            if not isinstance(scope, Function) or not isinstance(function, ast.Attribute):
                continue
            if scope.name == "<lambda>":
                continue
            if not programs_of(self._analysis).is_move(call, scope) or self._is_to_xla(call, scope):
                continue
            moved = self._objects.origin(function.value, scope, (), end(call))
            near = self._near(scope)
            parameters = {(of, name) for of, name in moved.unknown if of in near}
            if not parameters or not self._is_module(call, scope, parameters):
                continue
            if any(on and to.top is scope.top for _, to, on in self._switches):
                continue
            others = [(of, n) for of in near for n in of.bindings if (of, n) not in parameters]
            if any(self._is_given_optimizer(of, name) for of, name in others):
                calls.append((call, scope))
            else:
                for of in near:
                    model = ast.unparse(function.value)
                    for handed in handed_with(model, of, scope, self._analysis):
                        self._handed_on.setdefault(call, handed)
        return calls

    def _is_to_xla(self, move: ast.Call, scope: Scope) -> bool:
        """Whether a script for torch_xla makes the move: its author has taken care of the order."""
        values = [v for arg in _arguments(move) for v in self._evaluator.values(arg, scope)]
        kinds = {value.kind for value in values if isinstance(value, DeviceValue)}
        return kinds == {Kind.XLA}

    def _near(self, scope: Function) -> list[Function]:
        """Return `scope` and, if it is a method, the code that makes instances of its class."""
        near = [scope]
        if scope.owner is not None and (built := self._evaluator.method(scope.owner, "__init__")):
            near += [built] if built is not scope else []
        return near

    def _is_module(
        self, move: ast.Call, scope: Scope, parameters: set[tuple[Function, str]]
    ) -> bool:
        """Whether the object of `move` is a module: by known facts, by its use, otherwise by its name."""
        assert isinstance(move.func, ast.Attribute)
        if self._evaluator.values(move.func.value, scope) - {UNKNOWN}:
            return is_module(move.func.value, scope, self._analysis)
        used = not self._used_as_modules.isdisjoint(parameters)
        return used or any(MODEL.fullmatch(name) for _, name in parameters)

    @cached_property
    def _used_as_modules(self) -> set[tuple[Function, str]]:
        """Parameters with unknown arguments that are used as only a module can be."""
        parameters: set[tuple[Function, str]] = set()
        for call, scope in self._evaluator.calls():
            function = call.func
            if not isinstance(scope, Function):
                continue
            asked = []
            if isinstance(function, ast.Attribute) and function.attr in OF_MODULES:
                asked = [function.value]
            elif any(
                isinstance(value, External) and WRAPPERS.match(value.name)
                for value in self._evaluator.values(function, scope)
            ):
                asked = call.args[:1]
            elif isinstance(function, ast.Attribute) and call in self._alone:
                asked = [function.value]
            for node in asked:
                parameters |= self._objects.origin(node, scope).unknown
        return parameters

    @cached_property
    def _alone(self) -> set[ast.Call]:
        """Moves whose result is unused: only a module moves in place."""
        moves = {call for call, _ in self._moves}
        return {
            node.value
            for top in {scope.top for _, scope in self._moves}
            for node in top.module.nodes
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
            if node.value in moves
        }

    @cached_property
    def _of_tensors(self) -> set[ast.expr]:
        """Moves whose result is an operand, or an argument of a torch function.

        An operand in the project function that gets the result counts too: `self.decode(z.to(device))`.
        """
        moves = {call for call, _ in self._moves}
        used: list[ast.expr] = []
        for call, scope in self._evaluator.calls():
            if any(argument in moves for argument in _arguments(call)):
                values = self._evaluator.values(call.func, scope)
                names = [value.name for value in values if isinstance(value, External)]
                if any(TORCH_FUNCTION.fullmatch(n) and not WRAPPERS.match(n) for n in names):
                    used += _arguments(call)
                functions = self._analysis.running[call].functions
                used += [
                    argument
                    for index, argument in enumerate(call.args)
                    if argument in moves
                    and functions
                    and all(_is_operand(function, index) for function in functions)
                ]
        for top in {scope.top for _, scope in self._moves}:
            for node in top.module.nodes:
                if isinstance(node, ast.BinOp):
                    used += node.left, node.right
                elif isinstance(node, ast.Compare):
                    used += node.left, *node.comparators
        return {node for node in used if node in moves}

    def _is_given_optimizer(self, function: Function, name: str) -> bool:
        """Whether the parameter `name`, with unknown arguments, is an optimizer."""
        if not any(binding.kind == "param" for binding in function.bindings.get(name, ())):
            return False
        if function.is_bound and function.parameters[:1] == [name]:
            return False
        values = self._evaluator.parameter(function, name)
        known = {is_optimizer_value(value, self._evaluator) for value in values} - {None}
        if known:
            return True in known
        if _has_groups(function, name):
            return True
        if (function, name) in self._used_as_optimizers:
            return not _holds_settings(function, name)
        return bool(OPTIMIZER.fullmatch(name)) and not _is_configuration(function, name)

    @cached_property
    def _used_as_optimizers(self) -> set[tuple[Function, str]]:
        """Parameters with unknown arguments that are used as only an optimizer can be."""
        parameters: set[tuple[Function, str]] = set()
        for call, scope in self._evaluator.calls():
            function = call.func
            if not isinstance(scope, Function):
                continue
            asked: list[ast.expr] = []
            if isinstance(function, ast.Attribute):
                steps = Effect.STEP in self._analysis.running[call].effect
                if steps or function.attr == "add_param_group":
                    asked.append(function.value)
                if function.attr == "unscale_":  # of a gradient scaler
                    asked += call.args[:1]
            if any(
                isinstance(value, External) and SCHEDULES.match(value.name)
                for value in self._evaluator.values(function, scope)
            ):
                asked += call.args[:1]
                asked += [k.value for k in call.keywords if k.arg == "optimizer"]
            for node in asked:
                parameters |= self._objects.origin(node, scope).unknown
        return parameters - self._settings

    @cached_property
    def _settings(self) -> set[tuple[Function, str]]:
        """Parameters that are handed to an optimizer beside its weights, such as the learning rate."""
        return {
            (scope, arg.id)
            for call, scope in self._made
            if isinstance(scope, Function)
            for arg in (*call.args[1:], *(k.value for k in call.keywords if k.arg != "optimizer"))
            if isinstance(arg, ast.Name)
        }


@lru_cache(maxsize=2)
def optimizers_of(analysis: Analysis) -> ProjectOptimizers:
    """Return the optimizers of an analyzed project, computed once for all files."""
    return ProjectOptimizers(analysis)


def _at(call: ast.Call, top: ModuleScope) -> Position:
    line, offset = call.end_lineno or 0, call.end_col_offset or 0
    return line, top.module.column(line, offset)


def _start(node: ast.stmt | ast.expr) -> Position:
    return node.lineno, node.col_offset


def _is_between(call: ast.Call, around: tuple[Position, Position]) -> bool:
    return around[0] <= _start(call) and end(call) <= around[1]


def _is_of_an_optimizer(function: ast.expr) -> bool:
    """Whether `function` is a method of an optimizer, or of an object that holds one: `state.update`."""
    return isinstance(function, ast.Attribute) and function.attr in KEEPING | OF_OPTIMIZERS


def _arguments(call: ast.Call) -> Iterable[ast.expr]:
    return (*call.args, *(keyword.value for keyword in call.keywords))


def _holds_settings(function: Function, name: str) -> bool:
    """Whether a function only asks `name` for what no optimizer has: `config.model`, `config.max_epoch`.

    What is made with the settings has them in its origin, as `build(model, config)` has.
    """
    asked = {
        node.attr
        for definition in function.definitions
        for node in walk(definition)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == name
    }
    return bool(asked) and asked.isdisjoint(ASKED_OPTIMIZERS)


def _has_groups(function: Function, name: str) -> bool:
    """Whether a function reads the groups of the parameter `name`, which only an optimizer has."""
    return any(
        isinstance(node, ast.Attribute)
        and node.attr == "param_groups"
        and isinstance(node.value, ast.Name)
        and node.value.id == name
        for definition in function.definitions
        for node in walk(definition)
    )


def _is_operand(function: Function, index: int) -> bool:
    """Whether a function computes with its argument number `index`, as with a tensor: `z = 2 * z`."""
    names = function.parameters[function.is_bound :]
    if index >= len(names):
        return False
    return any(
        isinstance(node, ast.BinOp)
        and any(
            isinstance(part, ast.Name) and part.id == names[index]
            for part in (node.left, node.right)
        )
        for definition in function.definitions
        for node in walk(definition)
    )


def _is_configuration(function: Function, name: str) -> bool:
    """Whether the parameter `name` holds settings: by its annotation, or by `Settings(**name)`."""
    for definition in function.definitions:
        arguments = definition.args
        for parameter in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            if parameter.arg == name and parameter.annotation is not None:
                text = ast.unparse(parameter.annotation)
                if SETTINGS.search(text) and not re.search(r"Optimizer\b", text):
                    return True
        for node in walk(definition):
            if not isinstance(node, ast.keyword) or node.arg is not None:
                continue
            if isinstance(node.value, ast.Name) and node.value.id == name:
                return True
    return False


def _parameter_of(target: ast.expr) -> str:
    """Return the name of the parameter in the target of a loop: `p` of `for i, (name, p) in …`."""
    while isinstance(target, ast.Tuple | ast.List) and target.elts:
        target = target.elts[-1]
    return target.id if isinstance(target, ast.Name) else ""


def _keeps(node: ast.AST, name: str) -> bool:
    """Whether an expression holds the object `name` itself, not an attribute of it as `p.shape`."""
    owners = {part.value for part in walk(node) if isinstance(part, ast.Attribute)}
    return any(
        isinstance(part, ast.Name) and part.id == name and part not in owners for part in walk(node)
    )


def _fills(loop: ast.For, texts: set[str]) -> bool:
    """Whether a loop over parameters puts them into one of the collections `texts`."""
    name = _parameter_of(loop.target)
    for node in (part for statement in loop.body for part in walk(statement)):
        into: ast.expr | None = None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in FILLS and any(_keeps(arg, name) for arg in _arguments(node)):
                into = node.func.value
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            into = node.targets[0] if _keeps(node.value, name) else None
        elif isinstance(node, ast.AugAssign) and _keeps(node.value, name):
            into = node.target
        while isinstance(into, ast.Subscript | ast.Call):
            into = into.value if isinstance(into, ast.Subscript) else into.func
            if isinstance(into, ast.Attribute) and into.attr in FILLS:
                into = into.value  # `groups.setdefault(rate, []).append(p)`
        if into is not None and ast.unparse(into) in texts:
            return True
    return False


def _marks(loop: ast.For) -> bool:
    """Whether a loop gives its elements attributes or hooks."""
    names = {part.id for part in walk(loop.target) if isinstance(part, ast.Name)}

    def is_own(node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id in names

    for node in (part for statement in loop.body for part in walk(statement)):
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Attribute) and is_own(target.value) for target in node.targets
        ):
            return True
        if isinstance(node, ast.Call) and (
            (isinstance(node.func, ast.Attribute) and node.func.attr in HOOKS)
            or (isinstance(node.func, ast.Name) and node.func.id == "setattr")
        ):
            return True
    return False


def _is_parameters(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr in PARAMETERS

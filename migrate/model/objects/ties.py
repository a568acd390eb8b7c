"""Weights that modules share, and the calls that move a model with such weights to a device.

A tie is `self.head.weight = self.embedding.weight` in a class of any file of the project, or a language model
of transformers that shares weights by its configuration. It belongs to a model if it runs when the model is
made, or in a called method for it.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path

from migrate.catalogue.words import MODEL
from migrate.model.calls.analysis import Analysis
from migrate.model.calls.kinds import UNKNOWN, ClassInstance, External, Value, class_around
from migrate.model.calls.makers import bound_to, made_by, same_as
from migrate.model.calls.order import closure
from migrate.model.calls.rank_tests import last_part
from migrate.model.calls.scopes import Function, ModuleScope, Region, Scope
from migrate.model.objects.objects import end, objects_of
from migrate.model.objects.optimizers import optimizers_of
from migrate.model.objects.parts import is_untied, parts_of
from migrate.syntax.origins import at_line
from migrate.syntax.walk_ast import children

End = tuple[int, int]

LOADS = b".load_state_dict("
# Parameters of torch layers, by which one layer gets the weight of another.
OF_LAYERS = frozenset({"bias", "weight"})
# Most of these share the weight of the embedding with the last layer (measured with transformers 5.23:
# GPT-2, BERT, T5, Llama with `tie_word_embeddings`).
LANGUAGE_MODEL = re.compile(
    r"transformers\.([\w.]+\.)?\w*(ForCausalLM|LMHeadModel|ForMaskedLM|ForPreTraining|WithLMHead"
    r"|ForConditionalGeneration|ForSeq2SeqLM)\b"
)
# A function for ties, and the name of a parameter that is a weight of another module.
TIES = re.compile(r"(^|_)(re)?tie(_|$)", re.IGNORECASE)
SHARED = re.compile(r"weight|embed|tied|shared", re.IGNORECASE)


@dataclass(frozen=True)
class Tie:
    """Location where modules come to share a weight.

    Args:
        path: the file; None where it is in transformers.
        line: of the assignment, from 1.
        text: the assignment, or the class of transformers.
    """

    path: Path | None
    line: int
    text: str

    def __str__(self) -> str:
        """Return the location as text."""
        return at_line(self.line, self.path) if self.path is not None else self.text


@dataclass(frozen=True)
class FileTies:
    """Shared weights of one file.

    Args:
        moves: the calls `model.to(…)` and `model.cuda(…)` whose model has ties.
        lost: the ties of the file, by line, whose model has no known move.
        untrained: the lines of ties that no program reaches that trains, where the project has such programs.
        imported: by the line of an import, the ties of other files whose model this script has no known move
            for; only if the script is analyzed by itself.
        loads: whether a file of the project loads a state dict. torch then also exchanges parameters, and
            refuses if another object holds them (the buckets of DDP).
    """

    moves: Mapping[End, tuple[Tie, ...]] = field(default_factory=dict)
    lost: Mapping[int, Tie] = field(default_factory=dict)
    untrained: frozenset[int] = frozenset()
    imported: Mapping[int, tuple[Tie, ...]] = field(default_factory=dict)
    loads: bool = False


@dataclass(frozen=True, eq=False)
class _Move:
    call: ast.Call
    path: Path
    ties: frozenset[Tie]


class Ties:
    """Ties of a project and the moves of models that have them.

    Args:
        analysis: what the calls of the project run.
    """

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis
        self._own: dict[Scope, list[tuple[Tie, str]]] = defaultdict(list)
        datas = {path: module.data for path, module in analysis.project.modules.items()}
        self._loads = any(LOADS in data for data in datas.values())
        self._names = OF_LAYERS | _parameters(analysis)
        words = "|".join(map(re.escape, sorted(self._names)))
        layers = "|".join(map(re.escape, sorted(OF_LAYERS)))
        second = rf"self\.\w+\s*=\s*self\.[^=\n]+\.({layers})\s*(#|$)"
        writes = re.compile(rf"\.({words})\s*=[^=]|{second}".encode(), re.MULTILINE)
        for path in sorted(path for path, data in datas.items() if writes.search(data)):
            self._find_ties(analysis.scopes[path])
        self._callees: dict[Function, set[Function]] = {}
        self._runs: dict[Function, list[tuple[ast.Call, Scope]]] = defaultdict(list)
        self.moves: list[_Move] = []
        self._every_move: list[tuple[ast.Call, Scope]] = []
        # A call is asked for each model around it.
        self._untied: dict[tuple[ast.Call, Scope], bool] = {}
        self._after: set[Tie] = set()  # made only after the model is on its device
        if self._own or any(b"transformers" in data for data in datas.values()):
            self._follow()

    def of_file(self, path: Path, alone: bool) -> FileTies:
        """Return the shared weights of the file `path`; `alone`: whether only it is rewritten."""
        project = self._analysis.project
        here = [move for move in self.moves if move.path == path]
        moved = {tie for move in (here if alone else self.moves) for tie in move.ties}
        moved |= self._after
        if not alone:
            moved -= self._moved_unseen
        every = [tie for ties in self._own.values() for tie, _ in ties]
        own = [tie for tie in every if tie.path == path]
        module = project.modules[path]
        ends = {}
        for move in here:
            line, offset = move.call.end_lineno or 0, move.call.end_col_offset or 0
            ends[line, module.column(line, offset)] = tuple(sorted(move.ties, key=str))
        elsewhere = self._elsewhere(path, moved) if alone else set()
        return FileTies(
            ends,
            {tie.line: tie for tie in own if tie not in moved},
            frozenset(tie.line for tie in own if tie in self._untrained),
            self._imported(path, elsewhere) if elsewhere else {},
            self._loads,
        )

    @cached_property
    def _untrained(self) -> frozenset[Tie]:
        """Ties in no program that trains, as far as calls show; none if the project has no such program."""
        analysis = self._analysis
        trained: set[Region] = set()
        for path in analysis.scopes:
            reached = analysis.reached_from(path)
            if not reached.isdisjoint(analysis.step_loops):
                trained |= reached
        if not trained:
            return frozenset()
        return frozenset(
            tie
            for scope, ties in self._own.items()
            for tie, _ in ties
            if scope.region not in trained
        )

    @cached_property
    def _moved_unseen(self) -> frozenset[Tie]:
        """Ties that may belong to a model that is moved without its class being known.

        The model is of a base class of the class with the tie, or of a class chosen by name.
        """
        seen = {move.call for move in self.moves}
        evaluator = self._analysis.evaluator
        owners = {tie: class_around(scope) for scope, ties in self._own.items() for tie, _ in ties}
        ties: set[Tie] = set()
        for call, scope in self._every_move if owners else ():
            if call in seen or not isinstance(call.func, ast.Attribute):
                continue
            model = call.func.value
            values = evaluator.values(model, scope)
            bases = {
                value.of for value in values if isinstance(value, ClassInstance) and not value.exact
            }
            named = not values - {UNKNOWN} and MODEL.fullmatch(last_part(model)) is not None
            if named and self._is_made_by_name(call, scope):
                ties |= owners.keys()
            for tie, owner in owners.items() if bases else ():
                if owner is not None and not bases.isdisjoint(evaluator.ancestors(owner)):
                    ties.add(tie)
        return frozenset(ties)

    def _elsewhere(self, script: Path, moved: set[Tie]) -> set[Tie]:
        """Return the ties of other files that a model of `script` may have, without those in `moved`."""
        others = {
            tie: scope.region
            for scope, ties in self._own.items()
            for tie, _ in ties
            if tie.path != script and tie not in moved
        }
        if not others:
            return set()
        moves = [(call, at) for call, at in self._every_move if at.module.path == script]
        if any(self._is_made_by_name(call, at) for call, at in moves):
            return set(others)
        reached = self._analysis.reached_from(script)
        return {tie for tie, region in others.items() if region in reached}

    def _is_made_by_name(self, move: ast.Call, scope: Scope) -> bool:
        """Whether the object of `move` is of a class chosen at run time."""
        assert isinstance(move.func, ast.Attribute)
        evaluator = self._analysis.evaluator
        seen: set[Function] = set()
        waiting: list[tuple[ast.expr, Scope]] = [(move.func.value, scope)]
        while waiting:
            for maker, at in made_by(*waiting.pop(), evaluator):
                functions = [f for f in self._running(maker) if f not in seen]
                seen.update(functions)
                waiting += [(returned, f) for f in functions for returned in f.returns]
                if not self._running(maker) and any(
                    isinstance(called, ast.Subscript | ast.Call)
                    for called in bound_to(maker.func, at, evaluator)
                ):
                    return True
        return False

    def _imported(self, script: Path, ties: set[Tie]) -> dict[int, tuple[Tie, ...]]:
        """Return `ties` by the line of the first import of `script` that leads to their file."""
        project = self._analysis.project
        by_line: dict[int, tuple[Tie, ...]] = {}
        said: set[Tie] = set()
        for node in project.modules[script].nodes:
            if not isinstance(node, ast.Import | ast.ImportFrom):
                continue
            reached: set[Path] = set()
            waiting = [place for place in self._files_of(script, node) if place in project.modules]
            while waiting:
                path = waiting.pop()
                if path not in reached and path != script:
                    reached.add(path)
                    module = project.modules[path]
                    waiting += [p for p in project.imports(module) if p in project.modules]
            new = {tie for tie in ties - said if tie.path in reached}
            said |= new
            if new:
                by_line[node.lineno] = tuple(sorted(new, key=str))
        return by_line

    def _files_of(self, script: Path, node: ast.Import | ast.ImportFrom) -> Iterator[Path]:
        return self._analysis.project.imported_by(script, [node])

    def _find_ties(self, top: ModuleScope) -> None:
        functions = {(f.line, f.name): f for f in top.functions}
        waiting: list[tuple[ast.AST, Scope]] = [(top.module.tree, top)]
        while waiting:
            node, scope = waiting.pop()
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                scope = functions.get((node.lineno, node.name), scope)
            if isinstance(node, ast.Assign) and (
                _is_tie(node, scope, self._names) or self._is_second_name(node, scope)
            ):
                if not self._may_be_parameter(node.value, scope):
                    continue
                tie = Tie(top.module.path, node.lineno, ast.unparse(node))
                self._own[scope].append((tie, _root(node.targets[0])))
            waiting += [(child, scope) for child in children(node)]

    def _is_second_name(self, node: ast.Assign, scope: Scope) -> bool:
        """Whether a module keeps a parameter of its part: `self.words = self.embedding.weight`."""
        *_, target = node.targets
        match target, node.value:
            case ast.Attribute(value=ast.Name(id="self")), ast.Attribute(attr=name, value=part):
                own = class_around(scope)
                if own is None or name not in OF_LAYERS or not _is_part(part):
                    return False
                bases = self._analysis.evaluator.external_bases(own)
                return any(base.rpartition(".")[2].endswith("Module") for base in bases)
        return False

    def _may_be_parameter(self, node: ast.expr, scope: Scope) -> bool:
        """Whether `node` is a parameter of a module, or of a class that is unknown."""
        if not isinstance(node, ast.Attribute) or node.attr in OF_LAYERS:
            return True
        evaluator = self._analysis.evaluator
        values = evaluator.values(node.value, scope)
        owners = {value.of for value in values if isinstance(value, ClassInstance)}
        own = class_around(scope) if ast.unparse(node.value) == "self" else None
        if own is not None:
            owners = {own}
        bindings = [
            binding
            for owner in owners
            for ancestor in evaluator.ancestors(owner)
            for binding in ancestor.attributes.get(node.attr, ())
        ]
        answers = (_makes_parameter(b.value, b.scope, self._analysis) for b in bindings)
        return not owners or not bindings or any(answers)

    def _follow(self) -> None:
        analysis = self._analysis
        moves = []
        for top in analysis.scopes.values():
            for home in top.all_roots:
                for region in analysis.regions(home):
                    for call, scope in region.calls:
                        for function in analysis.running[call].functions:
                            self._runs[function].append((call, scope))
                        if _is_move(call):
                            moves.append((call, scope))
        for function, runs in self._runs.items():
            for _, scope in runs:
                if isinstance(scope, Function):
                    self._callees.setdefault(scope, set()).add(function)
        for scope, ties in list(self._own.items()):
            self._own[scope] = [
                (tie, root) for tie, root in ties if not _is_moved_above(tie, root, scope, moves)
            ]
        self._every_move = moves
        for call, scope in moves:
            assert isinstance(call.func, ast.Attribute)
            model = call.func.value
            shared = frozenset(self._of(model, call, scope))
            if shared and self._is_moved_copy(model, call, scope):
                continue
            if shared and objects_of(analysis).replaces_on_cuda(call, scope):
                self._after |= shared
            elif shared:
                self.moves.append(_Move(call, scope.module.path, shared))

    def _is_moved_copy(self, model: ast.expr, move: ast.Call, scope: Scope) -> bool:
        """Whether `model` is a deep copy of what has moved before `move`: such a move keeps its ties.

        Measured: a copy on the device shares what the original shares, and a move makes no new parameters.
        """
        origin = objects_of(self._analysis).origin(model, scope, (), end(model))
        return bool(origin.originals) and optimizers_of(self._analysis).has_moved(
            model, move, scope
        )

    def _of(self, model: ast.expr, move: ast.Call, scope: Scope) -> Iterator[Tie]:
        """Yield the ties of `model`, which `move` moves in `scope`."""
        while (inner := same_as(model)) is not None:
            model = inner
        for tie, root in self._own.get(scope, ()):
            if isinstance(model, ast.Name) and root == model.id and tie.line < move.lineno:
                yield tie
        for part, at in parts_of(model, scope, self._analysis):
            for value in self._analysis.evaluator.values(part, at):
                yield from self._of_value(value, move, scope)
            if isinstance(part, ast.Call):
                for function in self._running(part):
                    yield from self._within(function)
                if not self._is_untied(part, at):
                    yield from self._of_library(part)

    def _is_untied(self, call: ast.Call, scope: Scope) -> bool:
        if (call, scope) not in self._untied:
            self._untied[call, scope] = is_untied(call, scope, self._analysis)
        return self._untied[call, scope]

    def _running(self, call: ast.Call) -> list[Function]:
        ran = self._analysis.running.get(call)
        return ran.functions if ran is not None else []

    def _of_value(self, value: Value, move: ast.Call, scope: Scope) -> Iterator[Tie]:
        if not isinstance(value, ClassInstance):
            return
        evaluator = self._analysis.evaluator
        for name in ("__init__", "__post_init__"):
            if method := evaluator.method(value.of, name):
                yield from self._within(method)
        for ancestor in evaluator.ancestors(value.of):
            for bindings in list(ancestor.bindings.values()):
                for method in (b.scope for b in bindings if isinstance(b.scope, Function)):
                    if TIES.search(method.name) is None:
                        continue
                    if self._runs_before(method, move, scope):
                        yield from self._within(method)
                    else:
                        self._after.update(self._within(method))
        for base in evaluator.external_bases(value.of):
            if LANGUAGE_MODEL.match(base):
                yield Tie(None, 0, base)

    def _runs_before(self, method: Function, move: ast.Call, scope: Scope) -> bool:
        """Whether `method` runs before `move`, or may."""
        runs = self._runs.get(method, [])
        after = [call for call, at in runs if at is scope and call.lineno > move.lineno]
        return len(after) < len(runs) or not runs

    def _of_library(self, call: ast.Call) -> Iterator[Tie]:
        ran = self._analysis.running.get(call)
        if ran is None:
            return
        for value in self._analysis.evaluator.values(call.func, ran.scope):
            if isinstance(value, External) and (match := LANGUAGE_MODEL.match(value.name)):
                yield Tie(None, 0, match[0])

    def _within(self, start: Function) -> Iterator[Tie]:
        """Yield the ties that running `start` makes."""
        for function in closure([start], lambda caller: self._callees.get(caller, ())):
            yield from (tie for tie, _ in self._own.get(function, ()))


@lru_cache(maxsize=4)
def ties_of(analysis: Analysis) -> Ties:
    """Return the ties of an analyzed project, computed once."""
    return Ties(analysis)


def _parameters(analysis: Analysis) -> frozenset[str]:
    """Return the names of the attributes to which classes of the project assign parameters: `self.scale`."""
    return frozenset(
        name
        for top in analysis.scopes.values()
        for class_ in top.classes
        for name, bindings in class_.attributes.items()
        if any(_makes_parameter(b.value, b.scope, analysis) for b in bindings)
    )


def _makes_parameter(node: ast.expr | None, scope: Scope, analysis: Analysis) -> bool:
    match node:
        case ast.IfExp(body=body, orelse=orelse):
            return any(_makes_parameter(branch, scope, analysis) for branch in (body, orelse))
        case ast.Call(func=ast.Name(id="Parameter") | ast.Attribute(attr="Parameter") as made):
            values = analysis.evaluator.values(made, scope)
            return any(isinstance(v, External) and v.name.startswith("torch.") for v in values)
    return False


def _is_tie(node: ast.Assign, scope: Scope, names: frozenset[str]) -> bool:
    """Whether `node` gives a module the weight of another, as far as is plain to see.

    Args:
        node: the assignment.
        scope: the scope of the assignment.
        names: the names of parameters of modules.
    """
    *_, target = node.targets
    if not (isinstance(target, ast.Attribute) and target.attr in names):
        return False
    value = node.value
    named = isinstance(scope, Function) and TIES.search(scope.name) is not None
    if not (_is_part(target.value) or (named and isinstance(target.value, ast.Name))):
        return False
    if isinstance(value, ast.Attribute) and value.attr in names:
        if value.attr != target.attr and {value.attr, target.attr} <= OF_LAYERS:
            return False
        of_name = isinstance(value.value, ast.Name)
        own = value.attr not in OF_LAYERS and ast.unparse(value.value) == "self"
        return _is_part(value.value) or own or (named and of_name)
    if not (isinstance(value, ast.Name) and isinstance(scope, Function)):
        return False
    in_class = class_around(scope) is not None
    return in_class and value.id in scope.parameters and SHARED.search(value.id) is not None


def _is_part(node: ast.expr) -> bool:
    """Whether `node` is a part of a module: `self.head`, `model.layers[0].norm`."""
    return isinstance(node, ast.Attribute | ast.Subscript) and "config" not in ast.unparse(node)


def _is_move(call: ast.Call) -> bool:
    if not isinstance(call.func, ast.Attribute):
        return False
    if call.func.attr == "cuda":
        return True
    keywords = {keyword.arg for keyword in call.keywords}
    return call.func.attr in ("to", "to_empty") and (bool(call.args) or "device" in keywords)


def _is_moved_above(tie: Tie, root: str, scope: Scope, moves: list[tuple[ast.Call, Scope]]) -> bool:
    """Whether the model is on its device already where the tie is made, so that it stays."""
    return root != "" and any(
        at is scope and call.lineno < tie.line and _root(call.func) == root for call, at in moves
    )


def _root(node: ast.AST) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""

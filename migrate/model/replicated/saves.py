"""Saves in a different file from the rank test around the call: `if env.chief: cluster.store(state)`.

All replicas have to run a save, and so they have to run the call of a function that saves. The facts here
decide how each of the two files is rewritten.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue.words import (
    DATASETS,
    EXITS,
    KEEPING,
    LOADS,
    RANK_NAME,
    READ_METHODS,
)
from migrate.model.calls.callers import all_first_attributes, callers_of, reaching
from migrate.model.calls.kinds import UNKNOWN, External
from migrate.model.calls.rank_tests import (
    is_for_first,
    is_local,
    last_part,
    parents,
)
from migrate.model.calls.registries import fits
from migrate.model.calls.scopes import Function, ModuleScope, Scope
from migrate.model.project.decided import ruled_out
from migrate.model.pure import bound_with_effects
from migrate.model.replicated.moved_files import SAVES, moved_files
from migrate.model.replicated.shares import handler_of
from migrate.syntax.origins import at_line
from migrate.syntax.walk_ast import walk

if TYPE_CHECKING:
    from migrate.model.calls.analysis import Analysis

PARAMETERS = frozenset({"obj", "f", "_use_new_zipfile_serialization"})
DEEPEST = 6
# Words in a file about a device or a model, and about the CPU.
OF_DEVICES = re.compile(rb"cuda|device|xla|\.to\(|state_dict|\bnn\b|parameters\(")
ON_CPU = re.compile(rb"device\s*=\s*[\"']cpu[\"']")
OF_HUB = frozenset({"load_state_dict_from_url", "load_url"})
OPENS = frozenset({"open", "BytesIO", "NamedTemporaryFile", "BlobFile"})


@dataclass(frozen=True)
class Saved:
    """Save that a call makes in another file.

    Args:
        where: the file and the line of the save.
        moves: whether the callee becomes a function that all replicas call.
        follows: a statement after the save that changes the file, for the first replica; empty for none.
    """

    where: str
    moves: bool
    follows: str = ""


class Saves:
    """Functions of a project that save, and the locations of their calls.

    Args:
        analysis: the project.

    Attributes:
        moved: the functions that only rank tests in other files call, and that all replicas may call: they
            save and return nothing. Each has whether one replica of every host passes these tests.
    """

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis
        self._moved_files: dict[ModuleScope, dict[ast.stmt, ast.Call]] = {}
        own = self._own = self._own_saves()
        # The save that each function makes, directly or through calls, and the function around the save.
        first = {function: (calls[0], function) for function, calls in own.items()}
        self._save = reaching(
            analysis, first, lambda call, scope, _: handler_of(call, scope, analysis) is None
        )
        self.moved: dict[Function, bool] = {}
        for function, calls in own.items():
            tests = self._tests(function)
            hosts = {is_local(test) for test in tests or ()}
            if len(hosts) == 1 and _can_move(function, calls):
                self.moved[function] = hosts.pop()

    def of_call(self, call: ast.Call, scope: Scope) -> Saved | None:
        """Return the save that `call` makes in another file of the project."""
        functions = self._analysis.running[call].functions
        for function in functions or self._of_unknown(call, scope):
            if function not in self._save or (functions and function.module is scope.module):
                continue
            if handler_of(call, scope, self._analysis) is not None:
                continue  # an exception may happen on one replica alone
            saving = self._reached_by(call, function)
            if saving is not None:
                save, saver = saving
                where = at_line(save.lineno, saver.module.path)
                top = self._analysis.scopes[saver.module.path]
                changes = self.moved_files(top).items()
                after = next((statement for statement, of in changes if of is save), None)
                follows = (
                    ""
                    if after is None
                    else f"`{_first_call(after)}` ({at_line(after.lineno, saver.module.path)})"
                )
                return Saved(where, function in self.moved, follows)
        return None

    def _of_unknown(self, call: ast.Call, scope: Scope) -> list[Function]:
        """Return the methods that save and that nothing else calls, for a method of an unknown object.

        The object's class may be chosen by name: `getattr(module, name)(options).save(path)`, below a test
        of the rank.
        """
        method = call.func
        if not isinstance(method, ast.Attribute) or method.attr not in self._uncalled:
            return []
        if self._analysis.evaluator.values(method.value, scope) - {UNKNOWN}:
            return []
        if _test_around(call, scope, all_first_attributes(self._analysis)) is None:
            return []
        return [function for function in self._uncalled[method.attr] if fits(call, function)]

    @cached_property
    def _uncalled(self) -> Mapping[str, list[Function]]:
        """Methods that save and have no known caller, by their names."""
        methods: dict[str, list[Function]] = defaultdict(list)
        for function in self._save:
            if function.is_bound and not callers_of(self._analysis).get(function):
                methods[function.name].append(function)
        return methods

    def moved_files(self, top: ModuleScope) -> Mapping[ast.stmt, ast.Call]:
        """Return the statements of a file that change a file saved before, each with the last such save."""
        if top not in self._moved_files:
            self._moved_files[top] = (
                moved_files(self._analysis, top) if b"save" in top.module.data else {}
            )
        return self._moved_files[top]

    def of_state(self, top: ModuleScope) -> Iterator[ast.Call]:
        """Yield the saves of parameters in functions of a file that get the state of a model or an optimizer.

        `def save_on_main(*args): torch.save(*args, **kwargs)`, called with `{"model": model.state_dict()}`.
        """
        for function in top.functions:
            for save in self._own.get(function, ()):
                saved = save.args[0] if save.args else None
                if saved is not None and self._is_passed_state(saved, function):
                    yield save

    def _is_passed_state(self, saved: ast.expr, scope: Scope, depth: int = 0) -> bool:
        if depth > DEEPEST:
            return False
        node = saved.value if isinstance(saved, ast.Starred) else saved
        if _names_state(node):
            return depth > 0
        if not isinstance(node, ast.Name):
            return False
        if isinstance(scope, Function):
            vararg = scope.arguments.vararg
            position = _position(node.id, scope)
            if vararg is not None and vararg.arg == node.id:
                position = len(scope.parameters)
            if position is not None:
                return any(
                    self._is_passed_state(arg, at, depth + 1)
                    for call, at in callers_of(self._analysis).get(scope, ())
                    if (arg := _argument(call, node.id, position - scope.is_bound)) is not None
                )
        bindings = self._analysis.evaluator.bindings_of(node.id, scope)
        return any(
            binding.kind == "value"
            and binding.value is not None
            and self._is_passed_state(binding.value, binding.scope, depth + 1)
            for binding in bindings
        )

    def of_host(self, top: ModuleScope) -> Iterator[ast.Call]:
        """Yield the saves of parameters in functions of a file that only get parts of checkpoints on the CPU.

        Example: `torch.save({"ema": checkpoint}, buffer)` in utils.py, and main.py loads with
        `map_location="cpu"`.
        """
        for function in top.functions:
            for save in self._own.get(function, ()):
                if save.args and self._is_passed_loaded(save.args[0], function):
                    yield save

    def _is_passed_loaded(self, saved: ast.expr, scope: Scope, depth: int = 0) -> bool:
        if depth > DEEPEST:
            return False
        match saved:
            case ast.Constant():
                return True
            case ast.Dict(keys=keys, values=parts):
                return None not in keys and all(
                    self._is_passed_loaded(part, scope, depth + 1) for part in parts
                )
            case ast.Subscript(value=whole):
                return self._is_passed_loaded(whole, scope, depth + 1)
            case ast.Call():
                return _loads_on_host(saved)
            case ast.Name(id=name):
                return not _is_filled(name, scope) and self._is_loaded_name(name, scope, depth)
        return False

    def _is_loaded_name(self, name: str, scope: Scope, depth: int) -> bool:
        bindings = [*self._analysis.evaluator.bindings_of(name, scope)]
        position = _position(name, scope) if isinstance(scope, Function) else None
        passed: list[tuple[ast.expr | None, Scope]] = []
        if isinstance(scope, Function) and position is not None:
            bindings = [binding for binding in bindings if binding.kind != "param"]
            passed = [
                (_argument(call, name, position - scope.is_bound), at)
                for call, at in callers_of(self._analysis).get(scope, ())
            ]
        values = [*passed, *((binding.value, binding.scope) for binding in bindings)]
        return (
            bool(values)
            and all(binding.kind == "value" for binding in bindings)
            and all(
                value is not None and self._is_passed_loaded(value, at, depth + 1)
                for value, at in values
            )
        )

    def _reached_by(self, call: ast.Call, function: Function) -> tuple[ast.Call, Function] | None:
        """Return the save that `call` makes by `function`, with its scope; None if its arguments exclude it.

        `export(model, path, version=0)` runs no branch of `if version == 1:`.
        """
        defined = function.definition
        skipped = ruled_out(call, defined, function.is_bound) if defined is not None else ()
        if not skipped:
            return self._save[function]
        for region in self._analysis.regions(function.region):
            for inner, _ in region.calls:
                if inner in skipped:
                    continue
                if any(inner is save for save in self._own.get(function, ())):
                    return inner, function
                for callee in self._analysis.running[inner].functions:
                    if callee in self._save:
                        return self._save[callee]
        return None

    def _own_saves(self) -> dict[Function, list[ast.Call]]:
        """Return the saves in each function."""
        saves: dict[Function, list[ast.Call]] = defaultdict(list)
        for scope in self._analysis.scopes.values():
            if b"save" not in scope.module.data:
                continue
            for function in scope.functions:
                for region in self._analysis.regions(function.region):
                    for call, at in region.calls:
                        if self._is_save(call, at) and not handler_of(call, at, self._analysis):
                            saves[function].append(call)
        return dict(saves)

    def _is_save(self, call: ast.Call, scope: Scope) -> bool:
        if last_part(call.func) != "save" and b"safetensors" not in scope.module.data:
            return False
        values = self._analysis.evaluator.values(call.func, scope)
        named = any(isinstance(value, External) and value.name in SAVES for value in values)
        saved = call.args[0] if call.args else None
        if saved is not None and self._is_dataset(saved, scope):
            return False
        while isinstance(saved, ast.Call) and isinstance(saved.func, ast.Attribute):
            if saved.func.attr in READ_METHODS:
                return False
            saved = saved.func.value
        if not isinstance(saved, ast.Name):
            return named
        return named and not (
            _is_loaded_on_host(saved.id, scope) or self._is_of_files(saved.id, scope)
        )

    def _is_of_files(self, name: str, scope: Scope) -> bool:
        """Whether `name` is the result of functions of a device-free file that read safetensors files.

        Example: `stats = self.compute_stats()`, which opens them by `safe_open(path, "pt", device="cpu")`.
        """
        data = scope.module.data
        if b"safe_open" not in data or OF_DEVICES.search(ON_CPU.sub(b"", data)):
            return False
        values = [binding.value for binding in scope.bindings.get(name, ())]
        calls = [value for value in values if isinstance(value, ast.Call)]
        return (
            bool(values)
            and len(calls) == len(values)
            and all(ast.unparse(call.func) == "torch.load" or self._opens(call) for call in calls)
            and any(map(self._opens, calls))
        )

    def _opens(self, call: ast.Call) -> bool:
        """Whether all functions that `call` runs, without arguments, open safetensors files."""
        functions = self._analysis.running[call].functions if not call.args else ()
        return bool(functions) and all(
            any(
                last_part(call.func) == "safe_open"
                for region in self._analysis.regions(function.region)
                for call, _ in region.calls
            )
            for function in functions
        )

    def _is_dataset(self, saved: ast.expr, scope: Scope) -> bool:
        """Whether `saved` is a dataset of torchvision or a part of one, as in `values.host`."""
        while isinstance(saved, ast.Attribute):
            saved = saved.value
        if isinstance(saved, ast.Name):
            values = [binding.value for binding in scope.bindings.get(saved.id, ())]
            return bool(values) and all(
                isinstance(value, ast.Call) and self._is_dataset(value, scope) for value in values
            )
        return isinstance(saved, ast.Call) and any(
            name.startswith(DATASETS)
            for name in self._analysis.evaluator.externals(saved.func, scope)
        )

    def _tests(self, function: Function) -> list[ast.expr] | None:
        """Return the first-replica tests around all calls of `function`; None if a call has none."""
        tests = []
        attributes = all_first_attributes(self._analysis)
        for call, at in callers_of(self._analysis).get(function, ()):
            test = _test_around(call, at, attributes)
            if at.module is function.module or test is None:
                return None
            tests.append(test)
        return tests


def _first_call(statement: ast.stmt) -> str:
    """Return the source text of the first call that stands alone in `statement`."""
    alone = (node.value for node in walk(statement) if isinstance(node, ast.Expr))
    return next((ast.unparse(call) for call in alone), "")


def _names_state(node: ast.expr) -> bool:
    """Whether an expression calls `state_dict()` and does not copy it to the host."""
    asked = [n for n in walk(node) if isinstance(n, ast.Call)]
    names = {last_part(call.func) for call in asked}
    return "state_dict" in names and names.isdisjoint(READ_METHODS)


def _position(name: str, function: Function) -> int | None:
    if name in function.parameters:
        return function.parameters.index(name)
    return (
        len(function.parameters)
        if name in function.bindings and _is_keyword(name, function)
        else None
    )


def _is_keyword(name: str, function: Function) -> bool:
    return any(argument.arg == name for argument in function.arguments.kwonlyargs)


def _argument(call: ast.Call, name: str, position: int) -> ast.expr | None:
    """Return the argument of a call for a parameter, by name or position."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    if position < 0:  # the object whose method is called
        return call.func.value if isinstance(call.func, ast.Attribute) else None
    before = call.args[: position + 1]
    if len(before) <= position or any(isinstance(arg, ast.Starred) for arg in before[:-1]):
        return next((arg for arg in before if isinstance(arg, ast.Starred)), None)
    return before[position]


def _is_loaded_on_host(name: str, scope: Scope) -> bool:
    """Whether `name` is a checkpoint loaded on the CPU, with nothing new put into it.

    The equivalent of `values.host` for a save in the script that is rewritten.
    """
    bindings = scope.bindings.get(name, ())
    if not bindings or not all(_loads_on_host(binding.value) for binding in bindings):
        return False
    return not _is_filled(name, scope)


def _is_filled(name: str, scope: Scope) -> bool:
    """Whether the function, or the file around it, puts other values into `name`: `state["model"] = model`.

    A name of another function is another variable.
    """
    defined = scope.definition if isinstance(scope, Function) else None
    for node in scope.module.nodes if defined is None else walk(defined):
        put: list[ast.expr] = []
        if isinstance(node, ast.Assign) and any(_is_item(target, name) for target in node.targets):
            put = [node.value]
        elif isinstance(node, ast.Call) and last_part(node.func) in KEEPING:
            of = node.func.value if isinstance(node.func, ast.Attribute) else None
            put = [*node.args, *(k.value for k in node.keywords)] if _root(of) == name else []
        if any(isinstance(n, ast.Name) and n.id != name for value in put for n in walk(value)):
            return True
    return False


def _loads_on_host(value: ast.expr | None) -> bool:
    """Whether `value` is `torch.load(path, map_location='cpu')`, or a project function's result from it."""
    if not isinstance(value, ast.Call):
        return False
    called = last_part(value.func)
    if LOADS.search(called) is None and called not in OF_HUB:
        return False
    place = next((k.value for k in value.keywords if k.arg == "map_location"), None)
    if place is None and ast.unparse(value.func) == "torch.load" and len(value.args) > 1:
        place = value.args[1]
    if isinstance(place, ast.Call) and last_part(place.func) == "device" and place.args:
        place = place.args[0]
    return isinstance(place, ast.Constant) and place.value == "cpu"


def _is_item(target: ast.expr, name: str) -> bool:
    return isinstance(target, ast.Subscript) and _root(target) == name


def _root(node: ast.expr | None) -> str:
    while isinstance(node, ast.Subscript | ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


@lru_cache(maxsize=2)
def saves_of(analysis: Analysis) -> Saves:
    """Return the saves of a project, computed once for all files."""
    return Saves(analysis)


def _test_around(call: ast.Call, scope: Scope, attributes: frozenset[str]) -> ast.expr | None:
    """Return the first-replica test whose branch contains `call`."""
    above = parents(scope.module)
    below: ast.AST = call
    node = above.get(call)
    while node is not None and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        in_branch = isinstance(node, ast.If) and any(below is statement for statement in node.body)
        if in_branch and isinstance(node, ast.If) and is_for_first(node.test, attributes):
            return node.test
        below, node = node, above.get(node)
    return None


def _can_move(function: Function, saves: Sequence[ast.Call]) -> bool:
    """Whether all replicas may call `function`: besides its `saves` only the first replica does anything."""
    above = parents(function.module)
    line = above.get(saves[0])
    around = above.get(line) if line is not None else None
    if not isinstance(line, ast.Expr) or not isinstance(around, ast.FunctionDef):
        return False
    if around.decorator_list or function.is_bound or around.name != function.name:
        return False
    returns = (node for node in walk(around) if isinstance(node, ast.Return))
    if any(node.value is not None for node in returns):
        return False
    if any(isinstance(node, ast.Yield | ast.YieldFrom) for node in walk(around)):
        return False
    if not all(_is_plain(save) and _stands_in(save, around, above) for save in saves):
        return False
    last = max(
        number for number, statement in enumerate(around.body) if above.get(saves[-1]) is statement
    )
    if any(_may_leave(statement) for statement in around.body[:last]):
        return False
    body = cst.ensure_type(cst.parse_statement(ast.unparse(around)), cst.FunctionDef).body.body
    lines = {
        number
        for number, statement in enumerate(around.body)
        if any(above.get(s) is statement for s in saves)
    }
    saving = {id(body[number]) for number in lines}
    return bound_with_effects(body, lambda statement: id(statement) in saving) is None


def _may_leave(statement: ast.stmt) -> bool:
    """Whether running `statement` may leave the function: its file does not show on which replicas."""
    leaving = (ast.Return, ast.Raise, ast.Assert)
    return any(
        isinstance(node, leaving)
        or (isinstance(node, ast.Call) and ast.unparse(node.func) in EXITS)
        for node in walk(statement)
    )


def _stands_in(save: ast.Call, around: ast.FunctionDef, above: dict[ast.AST, ast.AST]) -> bool:
    line = above.get(save)
    return isinstance(line, ast.Expr) and any(line is statement for statement in around.body)


def _is_plain(save: ast.Call) -> bool:
    """Whether `save` is `torch.save(obj, path)` with a path that is the same on all replicas."""
    if last_part(save.func) != "save" or any(isinstance(arg, ast.Starred) for arg in save.args):
        return False
    if len(save.args) > 2 or any(keyword.arg not in PARAMETERS for keyword in save.keywords):
        return False
    for value in (*save.args[1:], *(k.value for k in save.keywords if k.arg == "f")):
        for node in walk(value):
            if isinstance(node, ast.Call) and last_part(node.func) in OPENS:
                return False
            if isinstance(node, ast.Name | ast.Attribute) and RANK_NAME.fullmatch(last_part(node)):
                return False
    return True

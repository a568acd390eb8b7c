"""Functions of any file that return a random host number."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Set
from functools import lru_cache
from typing import TYPE_CHECKING

from migrate.catalogue.drawing import (
    DISTRIBUTION_DRAWS,
    HOST_DRAWS,
    MAKERS,
    NUMPY_OTHERS,
    OF_ONE_PROCESS,
)
from migrate.model.calls.callers import callers_of, reaching, returning
from migrate.model.calls.kinds import ClassInstance, External
from migrate.model.calls.passing import passed_by
from migrate.model.calls.rank_tests import is_of_rank, last_part
from migrate.model.calls.scopes import Class, Function
from migrate.model.project.decided import constants_given, ruled_out_by
from migrate.syntax.walk_ast import walk

if TYPE_CHECKING:
    from migrate.model.calls.analysis import Analysis
    from migrate.model.calls.scopes import Scope

DEEPEST = 8
# Python functions whose result is random if an argument is.
PLAIN = frozenset({"int", "float", "bool", "round", "abs", "min", "max", "len", "sum"})
READS = frozenset({"item", "tolist"})
# Last parts of the names of functions that draw with the generator of torch, `random` or numpy.
SHIFTS = HOST_DRAWS | MAKERS
# Libraries with whose generators a host draws.
ALL = frozenset({"numpy", "random", "torch"})
# Functions that seed such a generator, or all of them, by the last parts of their names.
SEEDS = frozenset({"manual_seed", "seed", "seed_all", "seed_everything", "set_seed"})
# Methods whose effect lasts for the life of the object.
MADE_ONCE = frozenset({"__init__", "__post_init__", "setup"})


@lru_cache(maxsize=4)
def drawing_of(analysis: Analysis, libraries: frozenset[str] = ALL) -> frozenset[Scope]:
    """Return the functions of a project that return a random host number, or a value computed from one."""
    return returning(
        analysis,
        lambda value, function, scopes: (
            _is_drawn(value, function, analysis, scopes, libraries=libraries)
            and not _is_ruled_out(value, function, analysis)
        ),
    )


def _is_ruled_out(value: ast.expr, function: Function, analysis: Analysis) -> bool:
    """Whether no call of the project reaches the return of `value`: `if shuffle: return sample(names)`."""
    constants = _always_given(function, analysis)
    return any(value in ruled_out_by(constants, definition) for definition in function.definitions)


def _always_given(function: Function, analysis: Analysis, depth: int = 3) -> dict[str, object]:
    """Return the parameters of `function` that get the same constant from each call, also by a default."""
    always: dict[str, object] | None = None
    for call, scope in callers_of(analysis).get(function, ()) if depth else ():
        around = _always_given(scope, analysis, depth - 1) if isinstance(scope, Function) else {}
        for definition in function.definitions:
            constants = constants_given(call, definition, function.is_bound, around)
            shared = constants.items() if always is None else always.items()
            always = {k: v for k, v in shared if k in constants and constants[k] == v}
    kept = function.bindings
    return {
        name: value
        for name, value in (always or {}).items()
        if all(binding.kind == "param" for binding in kept.get(name, ()))
    }


@lru_cache(maxsize=2)
def drawn_attributes(analysis: Analysis, replicated: bool) -> frozenset[tuple[Class, str]]:
    """Return the attributes, by class and name, that are set to random host numbers, again and again.

    Where there are replicas that nothing seeds alike, once suffices: each has another number. A method that
    gets the number counts: `model.set_depth(random.randint(1, 4))`. So does another object that sets the
    attribute: `model.depth = random.randint(1, 4)`.
    """
    attributes: set[tuple[Class, str]] = set()
    asked: dict[tuple[Function, str], set[tuple[Class, str]]] = defaultdict(set)
    drawing = drawing_of(analysis)
    apart = _drawn_apart(analysis) if replicated else frozenset()
    once = drawing_of(analysis, apart) if apart else frozenset()
    for top in analysis.scopes.values():
        for class_ in top.classes:
            for name, bindings in class_.attributes.items():
                for binding in bindings:
                    method = binding.scope
                    if not isinstance(method, Function):
                        continue
                    if method.name in MADE_ONCE:
                        if apart and _is_drawn(
                            binding.value, method, analysis, once, libraries=apart
                        ):
                            attributes.add((class_, name))
                        continue
                    if _is_drawn(binding.value, method, analysis, drawing):
                        attributes.add((class_, name))
                    for part in walk(binding.value) if binding.value is not None else ():
                        if isinstance(part, ast.Name) and part.id in method.parameters:
                            asked[method, part.id].add((class_, name))
        for name, sets in top.assigned.items():
            for receiver, binding in sets:
                if _is_drawn(binding.value, binding.scope, analysis, drawing):
                    for value in analysis.evaluator.values(receiver, binding.scope):
                        if isinstance(value, ClassInstance):
                            attributes.add((value.of, name))
    methods = {method for method, _ in asked}
    for ran in analysis.running.values() if asked else ():
        if methods.isdisjoint(ran.functions):
            continue
        for passed in passed_by(ran, analysis.evaluator):
            place = (passed.to, passed.name)
            if place in asked and _is_drawn(passed.node, passed.scope, analysis, drawing):
                attributes |= asked[place]
    return frozenset(attributes)


@lru_cache(maxsize=2)
def shifting_calls(analysis: Analysis) -> dict[ast.Call, bool]:
    """Return the calls of a project that draw on the host with the process's own generators.

    They do so directly, or through functions of the project. What the process draws after such a call is
    another number than it would be without the call. The value is whether torch's generator alone is used.
    """
    draws: dict[ast.Call, bool] = {}
    of_all: dict[Function, bool] = {}
    of_others: dict[Function, bool] = {}
    for top in analysis.scopes.values():
        for call, scope in analysis.calls_in(top):
            libraries = _shifts(call, scope, analysis) if last_part(call.func) in SHIFTS else set()
            if libraries:
                draws[call] = libraries == {"torch"}
            if libraries and isinstance(scope, Function):
                of_all[scope] = True
                if not draws[call]:
                    of_others[scope] = True
    functions, others = reaching(analysis, of_all).keys(), reaching(analysis, of_others).keys()
    for top in analysis.scopes.values() if functions else ():
        for call, _ in analysis.calls_in(top):
            ran = analysis.running[call].functions
            if not functions.isdisjoint(ran):
                draws[call] = others.isdisjoint(ran)
    return draws


def _shifts(call: ast.Call, scope: Scope, analysis: Analysis) -> set[str]:
    """Return the libraries with whose own generators a call draws."""
    if any(keyword.arg == "generator" for keyword in call.keywords):
        return set()
    values = analysis.evaluator.values(call.func, scope)
    names = {value.name for value in values if isinstance(value, External)}
    return {name.partition(".")[0] for name in names - OF_ONE_PROCESS if _draws(name, call)}


def _drawn_apart(analysis: Analysis) -> frozenset[str]:
    """Return the libraries with which replicas draw other numbers: nothing seeds them, or by the rank."""
    alike: set[str] = set()
    for call, ran in analysis.running.items():
        if last_part(call.func) not in SEEDS:
            continue
        arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
        if any(
            is_of_rank(part, ran.scope, analysis.evaluator)
            for argument in arguments
            for part in walk(argument)
            if isinstance(part, ast.expr)
        ):
            continue
        for value in analysis.evaluator.values(call.func, ran.scope):
            if isinstance(value, External):
                library = value.name.partition(".")[0]
                alike |= {library} if library in ALL else ALL
    return ALL - alike


def _is_drawn(
    node: ast.expr | None,
    scope: Scope,
    analysis: Analysis,
    scopes: Set[Scope],
    depth: int = 0,
    libraries: frozenset[str] = ALL,
) -> bool:
    if depth > DEEPEST:
        return False

    def drawn(value: ast.expr, at: Scope = scope) -> bool:
        return _is_drawn(value, at, analysis, scopes, depth + 1, libraries)

    match node:
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return any(map(drawn, parts))
        case ast.BinOp(left=left, right=right):
            return drawn(left) or drawn(right)
        case ast.UnaryOp(operand=value):
            return drawn(value)
        case ast.ListComp(elt=value, generators=loops):
            return drawn(value) or any(any(map(drawn, (loop.iter, *loop.ifs))) for loop in loops)
        case ast.IfExp(test=test, body=one, orelse=other):
            return any(map(drawn, (test, one, other)))
        case ast.Compare(left=left, comparators=others, ops=operators):
            asks = any(isinstance(operator, ast.Is | ast.IsNot) for operator in operators)
            return not asks and any(map(drawn, (left, *others)))
        case ast.BoolOp(values=values):
            return any(map(drawn, values))
        case ast.Name():
            origins = list(analysis.evaluator.origins(node, scope))
            return any(
                drawn(origin.value, origin.scope) for origin in origins if origin.value is not None
            ) or any(
                drawn(value, origin.scope)
                for origin in origins
                if isinstance(origin.value, ast.List) and not origin.value.elts
                for value in _appended(node.id, origin.scope, analysis)
            )
        case ast.Subscript(value=value, slice=ast.Constant()):
            return drawn(value)
        case ast.Call():
            return _is_call(node, scope, analysis, scopes, depth, libraries)
    return False


def _appended(name: str, scope: Scope, analysis: Analysis) -> Iterator[ast.expr]:
    """Yield the values that a function appends to its list `name`."""
    for root in scope.roots if isinstance(scope, Function) else ():
        for region in analysis.regions(root):
            for call, _ in region.calls:
                match call:
                    case ast.Call(func=ast.Attribute(value=ast.Name(id=to), attr="append")):
                        yield from call.args if to == name else ()


def _is_call(
    call: ast.Call,
    scope: Scope,
    analysis: Analysis,
    scopes: Set[Scope],
    depth: int,
    libraries: frozenset[str],
) -> bool:
    def drawn(value: ast.expr) -> bool:
        return _is_drawn(value, scope, analysis, scopes, depth + 1, libraries)

    func = call.func
    if isinstance(func, ast.Name) and func.id in PLAIN:
        return any(map(drawn, call.args))
    ran = analysis.running.get(call)
    if ran is not None and ran.functions:
        return not scopes.isdisjoint(ran.functions)
    names = {v.name for v in analysis.evaluator.values(func, scope) if isinstance(v, External)}
    if any(_draws(name, call) and _library(name) in libraries for name in names):
        return True
    if isinstance(func, ast.Attribute) and func.attr in DISTRIBUTION_DRAWS:
        return True
    if isinstance(func, ast.Name) and func.id == "hash" and call.args:
        return _is_string(call.args[0])
    if any(name.startswith(("math.", "numpy.")) for name in names):
        return any(map(drawn, call.args))
    if isinstance(func, ast.Attribute) and func.attr in READS:
        return drawn(func.value)
    return False


def _is_string(node: ast.expr) -> bool:
    """Whether `node` is a string literal, whose hash differs in every process."""
    match node:
        case ast.JoinedStr() | ast.Constant(value=str()):
            return True
        case ast.Call(func=ast.Name(id="str" | "repr")):
            return True
        case ast.Tuple(elts=parts):
            return any(map(_is_string, parts))
    return False


def _library(name: str) -> str:
    """Return the library whose generator the function `name` draws with; others have one in each process."""
    library = name.partition(".")[0]
    return library if library in ALL and name not in OF_ONE_PROCESS else next(iter(ALL))


def _draws(name: str, call: ast.Call) -> bool:
    package, _, last = name.rpartition(".")
    if name in OF_ONE_PROCESS:
        return True
    if package == "random":
        return last in HOST_DRAWS
    if package == "numpy.random":
        return last not in NUMPY_OTHERS
    # A draw on the device is no host number.
    return (
        package == "torch" and last in MAKERS and not any(k.arg == "device" for k in call.keywords)
    )

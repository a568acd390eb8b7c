"""Process groups that a program joins only if one of its options says so.

`torch_xla.launch` starts a replica on every chip for any options. Without the group, each replica trains a
model of its own, and no error reports it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from migrate.model.calls.callers import callers_of
from migrate.model.calls.kinds import Values
from migrate.model.calls.option_defaults import OF_PROCESSES, UNKNOWN, option_defaults_of
from migrate.model.calls.rank_tests import parents
from migrate.model.calls.scopes import Class, Function, Scope
from migrate.model.objects.programs import programs_of
from migrate.model.processes.launching import joining_of, joins_of
from migrate.syntax.walk_ast import walk

if TYPE_CHECKING:
    from migrate.model.calls.analysis import Analysis

# A project without one of these words starts no replicas of torch_xla.
LAUNCHES = re.compile(rb"torch_xla\.launch\b|\bxmp\.spawn\b|xla_multiprocessing|shims\.launch")
NEGATED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
MOST_STEPS = 6  # from a call to the choice of what it calls


class Condition(NamedTuple):
    """Condition for a call to join the group.

    Args:
        test, scope: the expression that decides, and its scope.
        needed: the values of `test` with which the call joins: a truth value, or keys.
    """

    test: ast.expr
    scope: Scope
    needed: bool | frozenset[object]

    @property
    def text(self) -> str:
        """The condition as a reader of the script would write it."""
        if isinstance(self.needed, bool):
            return ast.unparse(self.test if self.needed else _negated(self.test))
        keys = sorted(map(repr, self.needed))
        test = ast.unparse(self.test)
        return f"{test} == {keys[0]}" if len(keys) == 1 else f"{test} in ({', '.join(keys)})"


@lru_cache(maxsize=2)
def optional_groups(analysis: Analysis) -> Mapping[Path, Mapping[ast.Call, tuple[str, bool]]]:
    """Return the calls of each file that join a group under an option, with its test.

    Of calls that lead to each other, the outermost is returned.

    Returns:
        The value has the test, and whether it is off by default.
    """
    modules = [scope.module for scope in analysis.scopes.values()]
    if not any(LAUNCHES.search(module.data) for module in modules):
        return {}
    optional: dict[ast.Call, tuple[Scope, str, bool]] = {}
    conditions, tests = _Conditions(analysis), _Tests(analysis)
    for call, scope in _joins(analysis):
        for condition in conditions.of(call, scope):
            off = tests.may_be_off(condition)
            if off is not None:
                optional[call] = scope, condition.text, off
                break
    groups: dict[Path, dict[ast.Call, tuple[str, bool]]] = {}
    for call, (scope, text, off) in optional.items():
        callers = [caller for caller, _ in callers_of(analysis).get(scope, ())]  # type: ignore[call-overload]
        if not callers or not all(caller in optional for caller in callers):
            groups.setdefault(scope.module.path, {})[call] = text, off
    return groups


def _joins(analysis: Analysis) -> Iterator[tuple[ast.Call, Scope]]:
    """Yield the calls that join a process group, directly or through a function."""
    joining = joining_of(analysis)
    for top in analysis.scopes.values():
        for call, scope in analysis.calls_in(top):
            runs = not joining.isdisjoint(analysis.running[call].functions)
            if runs or call in joins_of(analysis):
                yield call, scope


class _Conditions:
    """Conditions under which calls join the group.

    Args:
        analysis: the project.
    """

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis
        self._evaluator = analysis.evaluator
        self._joining = joining_of(analysis)

    def of(self, call: ast.Call, scope: Scope) -> Iterator[Condition]:
        """Yield the conditions of a call: tests around it, and choices of what it calls."""
        yield from self._around(call, scope)
        yield from self._choices(call.func, scope, MOST_STEPS)

    @cached_property
    def _calls(self) -> Set[ast.Call]:
        return {call for call, _ in _joins(self._analysis)}

    def _around(self, node: ast.AST, scope: Scope) -> Iterator[Condition]:
        """Yield what must hold for `node` to run, up to the enclosing function.

        A test whose other branch joins too decides nothing, and neither does one without which nothing
        trains.
        """
        above = parents(scope.module)
        below = node
        around = above.get(node)
        while around is not None and not isinstance(below, ast.FunctionDef | ast.AsyncFunctionDef):
            match around:
                case ast.If(test=test, body=body, orelse=other) if below is not test:
                    mine, others = (body, other) if below in body else (other, body)
                    if self._decides(mine, others):
                        yield Condition(test, scope, below in body)
                case ast.IfExp(test=test, body=one, orelse=another) if below is not test:
                    other_part = another if below is one else one
                    if not self._joins_in([other_part]):
                        yield Condition(test, scope, below is one)
                case ast.match_case(pattern=pattern):
                    match_ = above[around]
                    assert isinstance(match_, ast.Match)
                    others = [s for case in match_.cases if case is not around for s in case.body]
                    keys = frozenset(_keys(pattern))
                    if keys and self._decides(around.body, others):
                        yield Condition(match_.subject, scope, keys)
            if isinstance(below, ast.stmt):
                yield from self._after_returns(below, around, scope)
            below, around = around, above.get(around)

    def _after_returns(self, node: ast.stmt, around: ast.AST, scope: Scope) -> Iterator[Condition]:
        """Yield the tests before a statement that leave the function: `if args.backend is None: return`."""
        block = getattr(around, "body", ())
        if not isinstance(block, list) or node not in block:
            return
        place = block.index(node)
        for statement in block[:place]:
            if isinstance(statement, ast.If) and not statement.orelse:
                leaves = isinstance(statement.body[-1], ast.Return)
                if leaves and self._decides(block[place:], statement.body):
                    yield Condition(statement.test, scope, False)

    def _decides(self, joining: Sequence[ast.stmt], others: Sequence[ast.stmt]) -> bool:
        """Whether a test decides about the group alone: the other branch trains too, or neither does."""
        if self._joins_in(others):
            return False
        return self._trains(others) or not self._trains(joining)

    def _joins_in(self, nodes: Iterable[ast.AST]) -> bool:
        return not self._calls.isdisjoint(
            part for node in nodes for part in walk(node) if isinstance(part, ast.Call)
        )

    def _trains(self, statements: Iterable[ast.stmt]) -> bool:
        training = programs_of(self._analysis).training
        loops = {region.loop for region in self._analysis.step_loops}
        for statement in statements:
            for node in walk(statement):
                if isinstance(node, ast.Call) and node in self._analysis.running:
                    if not training.isdisjoint(self._analysis.running[node].functions):
                        return True
                elif node in loops:
                    return True
        return False

    def _choices(self, node: ast.expr, scope: Scope, steps: int) -> Iterator[Condition]:
        """Yield what decides which function or class `node` is, where not every choice joins the group."""
        if not steps:
            return
        match node:
            case ast.Attribute(value=of):
                yield from self._choices(of, scope, steps - 1)
            case ast.Call(func=ast.Attribute(value=of, attr="get"), args=[key, *default]) if (
                keys := self._joining_keys(of, scope, default)
            ):
                yield Condition(key, scope, keys)
            case ast.Call(func=func):
                yield from self._choices(func, scope, steps - 1)
                for function in self._analysis.running[node].functions:
                    yield from self._among([(value, function) for value in function.returns], steps)
            case ast.Subscript(value=of, slice=key) if keys := self._joining_keys(of, scope):
                yield Condition(key, scope, keys)
            case ast.Name(id=name):
                bindings = [*self._evaluator.bindings_of(name, scope)]
                values = [(b.value, b.scope) for b in bindings if b.value is not None]
                if all(b.kind == "value" for b in bindings):
                    yield from self._among(values, steps)
            case ast.IfExp(test=test, body=one, orelse=other):
                joins = [
                    self._may_join(self._evaluator.values(part, scope)) for part in (one, other)
                ]
                if joins[0] is not joins[1]:
                    yield Condition(test, scope, joins[0])

    def _among(self, values: Sequence[tuple[ast.expr, Scope]], steps: int) -> Iterator[Condition]:
        """Yield what decides whether an expression that joins the group is the one of `values`."""
        joining = [
            (value, at) for value, at in values if self._may_join(self._evaluator.values(value, at))
        ]
        for value, at in joining if len(joining) == 1 else ():
            if len(values) > 1:
                yield from self._around(value, at)
            yield from self._choices(value, at, steps - 1)

    def _joining_keys(
        self, container: ast.expr, scope: Scope, default: Sequence[ast.expr] = ()
    ) -> frozenset[object]:
        """Return the keys of a mapping whose values join the group; none if all values and the default do."""
        keys: set[object] = set()
        others = any(not self._may_join(self._evaluator.values(node, scope)) for node in default)
        for display, at in self._evaluator.contents.displays(container, scope):
            if not isinstance(display, ast.Dict):
                continue
            for key, value in zip(display.keys, display.values, strict=True):
                if not self._may_join(self._evaluator.values(value, at)):
                    others = True
                elif isinstance(key, ast.Constant):
                    keys.add(key.value)
        return frozenset(keys) if others else frozenset()

    def _may_join(self, values: Values) -> bool:
        """Whether a function joins the group, or an object of a class does in some method."""
        for value in values:
            if isinstance(value, Function) and value in self._joining:
                return True
            of = value if isinstance(value, Class) else getattr(value, "of", None)
            ancestors = set(self._evaluator.ancestors(of)) if isinstance(of, Class) else set()
            if any(function.owner in ancestors for function in self._joining):
                return True
        return False


class _Tests:
    """Tests that depend on an option alone.

    Args:
        analysis: the project.
    """

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis
        self._evaluator = analysis.evaluator
        self._defaults = option_defaults_of(analysis)

    def may_be_off(self, condition: Condition) -> bool | None:
        """Return whether a condition fails by default; None if no option alone decides it."""
        value = self._defaults.of(condition.test, condition.scope)
        if value is not UNKNOWN:
            fails = (
                bool(value) is not condition.needed
                if isinstance(condition.needed, bool)
                else value not in condition.needed
            )
            return True if fails else None
        if condition.needed is True and self._is_property(condition.test, condition.scope):
            return False
        return None

    def _is_property(self, test: ast.expr, scope: Scope) -> bool:
        """Whether a test asks for a property that is False in some classes and True in others.

        The class is unknown: it is named by a setting, whose default is not in the script.
        """
        match test:
            case ast.BoolOp(op=ast.And(), values=parts):
                return any(self._is_property(part, scope) for part in parts)
            case ast.Name(id=name):
                bindings = [*self._evaluator.bindings_of(name, scope)]
                return bool(bindings) and all(
                    binding.kind == "value"
                    and binding.value is not None
                    and self._is_property(binding.value, binding.scope)
                    for binding in bindings
                )
            case ast.Attribute(value=of, attr=name) if not OF_PROCESSES.search(name):
                values = self._evaluator.values(of, scope)
                if values or list(self._evaluator.members_of(of, name, scope)):
                    return False
                return self._differs_by_class(name)
        return False

    def _differs_by_class(self, name: str) -> bool:
        properties = [
            function
            for top in self._analysis.scopes.values()
            for function in top.functions
            if function.name == name and function.owner is not None
        ]
        results = [_constant(function) for function in properties]
        return False in results and True in results and None not in results


def _constant(function: Function) -> bool | None:
    """Return the constant that a property returns; None for another method."""
    if not function.is_a("property") or len(function.returns) != 1:
        return None
    value = getattr(function.returns[0], "value", None)
    return value if isinstance(value, bool) else None


def _negated(test: ast.expr) -> ast.expr:
    """Return the test that holds where `test` does not."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return operand
        case ast.Compare(left=left, ops=[op], comparators=comparators) if type(op) in NEGATED:
            return ast.Compare(left, [NEGATED[type(op)]()], comparators)
    return ast.UnaryOp(ast.Not(), test)


def _keys(pattern: ast.pattern) -> Iterator[object]:
    """Yield the constants that a pattern of `match` accepts."""
    match pattern:
        case ast.MatchValue(value=ast.Constant(value=value)):
            yield value
        case ast.MatchSingleton(value=value):
            yield value
        case ast.MatchOr(patterns=parts):
            for part in parts:
                yield from _keys(part)

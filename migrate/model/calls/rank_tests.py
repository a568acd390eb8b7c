"""Tests that only some replicas pass, in any file of a project.

`replicas/guards.py` knows more about the tests of one script. This module knows the tests of all files by
name.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from migrate.catalogue.words import FIRST_DECORATOR, FIRST_NAME, RANK_FUNCTION, RANK_NAME
from migrate.model.calls.devices import kind_of
from migrate.model.calls.kind import Kind
from migrate.model.calls.kinds import Values
from migrate.model.calls.scopes import Function, ModuleScope, Scope, ValueBinding
from migrate.model.project.project import SourceModule
from migrate.syntax.walk_ast import children


class RankEvaluator(Protocol):
    """Part of the project's evaluator that this module uses, for values like `x if rank == 0 else None`."""

    def values(self, node: ast.expr | None, scope: Scope) -> Values:
        """Return the possible values of an expression."""

    def origins(self, node: ast.Name | ast.Attribute, scope: Scope) -> Iterator[ValueBinding]:
        """Yield the assignments that a name or an attribute may stand for."""


class RankAnalysis(Protocol):
    """Part of the project's analysis that this module uses."""

    @property
    def scopes(self) -> Mapping[Path, ModuleScope]:
        """Scopes of the project's modules."""

    @property
    def evaluator(self) -> RankEvaluator:
        """Evaluator of the project's expressions."""

    def __hash__(self) -> int: ...  # answers are cached for it


# Maximum number of names and functions followed from a test to the comparison that decides it.
DEEPEST = 3
# Names in a test whether there are several replicas.
OF_RUN = re.compile(r"dist|world|ddp|init|parallel|multi|size|n_?gpu|num_gpu|rank", re.IGNORECASE)


def is_for_first(test: ast.expr, attributes: frozenset[str] = frozenset()) -> bool:
    """Whether `test` lets only the first replica pass: `rank == 0`, `not rank`, `env.chief`.

    Args:
        test: the test.
        attributes: the attributes known to hold on the first replica only.
    """
    match test:
        case ast.BoolOp(op=ast.And()):
            return any(is_for_first(value, attributes) for value in test.values)
        case ast.UnaryOp(op=ast.Not()):
            return _is_rank(test.operand)
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[ast.Constant(value=0)]):
            return _is_rank(left)
        case ast.Compare(left=ast.Constant(value=0), ops=[ast.Eq()], comparators=[right]):
            return _is_rank(right)
        case ast.Attribute(attr=name) if name in attributes:
            return True
        case ast.Call(func=named) | ((ast.Name() | ast.Attribute()) as named):
            return FIRST_NAME.fullmatch(last_part(named)) is not None
    return False


def is_local(test: ast.expr) -> bool:
    """Whether `test` lets one replica of every host pass; `step % 10 == 0 and rank == 0` does not."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        asked = [part for part in test.values if is_for_first(part)]
        if asked:
            return any(map(is_local, asked))
    text = ast.unparse(test)
    return "local" in text.lower() or "%" in text


@lru_cache(maxsize=2)
def first_attributes(analysis: RankAnalysis) -> frozenset[str]:
    """Return the attributes that the project only assigns the result of such a test.

    Examples: `self.chief = rank == 0`, a property that returns the test, `Cluster(chief=rank == 0)`.
    """
    return frozenset(
        name for name in set(_first_attributes(analysis)) if not _is_else(name, analysis)
    )


@lru_cache(maxsize=2)
def first_functions(analysis: RankAnalysis) -> frozenset[Function]:
    """Return the functions of a project whose result says whether this is the first replica.

    For a context manager, the result is the value that it yields: `with main_only() as chosen:`.
    """
    return frozenset(
        function
        for scope in analysis.scopes.values()
        for function in scope.functions
        if (function.returns or function.yields) and _says_first(function, analysis)
    )


def _says_first(function: Function, analysis: RankAnalysis) -> bool:
    """Whether `function` returns the result of such a test, and True with a single replica."""
    is_manager = function.is_a("contextmanager", "asynccontextmanager")
    results = function.yields if is_manager else function.returns
    tests = [value for value in results if not _is_true(value)]
    return bool(tests) and all(lets_first_pass(value, function, analysis) for value in tests)


def lets_first_pass(test: ast.expr | None, scope: Scope, analysis: RankAnalysis) -> bool:
    """Whether only the first replica passes `test`: by its names, or by the origin of the compared values."""
    if test is None:
        return False
    if is_for_first(test):
        return True
    match test:
        case ast.BoolOp(op=ast.And()):
            return any(lets_first_pass(value, scope, analysis) for value in test.values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _is_index(operand, scope, analysis)
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
            sides = (left, right) if isinstance(right, ast.Constant) else (right, left)
            is_zero = isinstance(sides[1], ast.Constant) and sides[1].value == 0
            return is_zero and _is_index(sides[0], scope, analysis)
    return False


def _is_index(node: ast.expr, scope: Scope, analysis: RankAnalysis) -> bool:
    return kind_of(analysis.evaluator.values(node, scope)) is Kind.INDEX


def _is_true(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


@lru_cache(maxsize=256)
def parents(module: SourceModule) -> dict[ast.AST, ast.AST]:
    """Return the parent of each node of a module."""
    return {child: node for node in module.nodes for child in children(node)}


def last_part(node: ast.expr) -> str:
    """Return `c` of `a.b.c`, and of `c`; empty for anything else."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


@lru_cache(maxsize=2)
def unset_attributes(analysis: RankAnalysis) -> frozenset[str]:
    """Return the attributes that the project makes None on the other replicas: `c.run_dir = None`."""
    names: set[str] = set()
    for scope in analysis.scopes.values():
        for test in scope.module.nodes if b"None" in scope.module.data else ():
            if isinstance(test, ast.If):
                of_others = test.body if is_for_others(test.test) else []
                of_others = test.orelse if is_for_first(test.test) else of_others
                names |= set(_set_to_none(of_others))
    return frozenset(names)


def is_for_others(test: ast.expr) -> bool:
    """Whether `test` lets all replicas but the first pass: `rank != 0`, `not env.chief`."""
    match test:
        case ast.Compare(left=left, ops=[ast.NotEq()], comparators=[ast.Constant(value=0)]):
            return _is_rank(left)
        case ast.UnaryOp(op=ast.Not()):
            return is_for_first(test.operand)
    return False


@lru_cache(maxsize=2)
def apart_attributes(analysis: RankAnalysis) -> Mapping[str, Path]:
    """Return the attributes that one file alone sets, to other constants below a rank test, with the file."""
    setting: dict[str, dict[Path, list[ValueBinding]]] = defaultdict(lambda: defaultdict(list))
    for path, top in analysis.scopes.items():
        for name, places in top.assigned.items():
            setting[name][path].extend(binding for _, binding in places)
        for class_ in top.classes:
            for name, bindings in class_.attributes.items():
                setting[name][path].extend(bindings)
    return {
        name: path
        for name, by_file in setting.items()
        for path, bindings in by_file.items()
        if len(by_file) == 1 and _are_apart(bindings, analysis.evaluator)
    }


@lru_cache(maxsize=2)
def apart_functions(analysis: RankAnalysis) -> frozenset[Function]:
    """Return the functions that return other constants below a rank test, or a variable that is set so."""
    return frozenset(
        function
        for top in analysis.scopes.values()
        for function in top.functions
        if function.returns and not function.yields and _returns_apart(function, analysis.evaluator)
    )


def _returns_apart(function: Function, evaluator: RankEvaluator) -> bool:
    constants = [value for value in function.returns if isinstance(value, ast.Constant)]
    differ = len({ast.unparse(value) for value in constants}) > 1
    if differ and any(_guard_of(value, function, evaluator) for value in constants):
        return True
    return any(
        isinstance(value, ast.Name)
        and _are_apart(list(function.bindings.get(value.id, ())), evaluator)
        for value in function.returns
    )


def _are_apart(bindings: list[ValueBinding], evaluator: RankEvaluator) -> bool:
    """Whether all values are constants, and a rank test decides which of them holds."""
    if not all(isinstance(binding.value, ast.Constant) for binding in bindings):
        return False
    texts = {ast.unparse(binding.value) for binding in bindings if binding.value is not None}
    return len(texts) > 1 and any(
        _guard_of(binding.value, binding.scope, evaluator) for binding in bindings
    )


def _set_to_none(statements: list[ast.stmt]) -> Iterator[str]:
    for statement in statements:
        match statement:
            case ast.Assign(value=ast.Constant(value=None)):
                yield from (t.attr for t in statement.targets if isinstance(t, ast.Attribute))


def _first_attributes(analysis: RankAnalysis) -> Iterator[str]:
    for scope in analysis.scopes.values():
        tests = [test for test, around in scope.compared if lets_first_pass(test, around, analysis)]
        for test in tests:
            above = parents(scope.module).get(test)
            match above:
                case ast.Assign():
                    yield from (t.attr for t in above.targets if isinstance(t, ast.Attribute))
                case ast.Return():
                    yield from _property(above, scope.module)
                case ast.keyword(arg=str() as name):
                    call = parents(scope.module).get(above)
                    if isinstance(call, ast.Call) and last_part(call.func)[:1].isupper():
                        yield name


def _is_else(name: str, analysis: RankAnalysis) -> bool:
    """Whether the attribute `name` has other values too, or is an option."""
    for scope in analysis.scopes.values():
        if f"--{name}".encode() in scope.module.data:
            return True
        bindings = [binding for _, binding in scope.assigned.get(name, ())]
        for class_ in scope.classes:
            bindings += class_.attributes.get(name, ())
        others = [binding for binding in bindings if not _is_parameter(binding, name)]
        if not all(
            _is_for_one_process(binding) or lets_first_pass(binding.value, binding.scope, analysis)
            for binding in others
        ):
            return True
    return False


def _is_for_one_process(binding: ValueBinding) -> bool:
    """Whether `binding` is True with a single replica: `else:` of `if dist.is_initialized():`."""
    if not _is_true(binding.value) or binding.value is None:
        return False
    above = parents(binding.scope.module)
    branch = above.get(above.get(binding.value, binding.value))
    return isinstance(branch, ast.If) and OF_RUN.search(ast.unparse(branch.test)) is not None


def _is_parameter(binding: ValueBinding, name: str) -> bool:
    """Whether the bound value is the parameter `name`: `self.chief = chief`."""
    value = binding.value
    parameters = getattr(binding.scope, "parameters", ())
    return isinstance(value, ast.Name) and value.id == name and name in parameters


def _property(node: ast.AST, module: SourceModule) -> Iterator[str]:
    """Yield the name of the property that has `node` as a statement."""
    above: ast.AST | None = parents(module).get(node)
    decorators = above.decorator_list if isinstance(above, ast.FunctionDef) else ()
    if any(last_part(decorator) in ("property", "cached_property") for decorator in decorators):
        assert isinstance(above, ast.FunctionDef)
        yield above.name


def _is_rank(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return RANK_FUNCTION.fullmatch(last_part(node.func)) is not None
    return RANK_NAME.fullmatch(last_part(node)) is not None


def chosen_by_rank(choice: ast.IfExp, scope: Scope, evaluator: RankEvaluator) -> bool:
    """Whether `choice` is None on some replicas: `Tracker() if rank == 0 else None`."""
    nothing = [is_none(part) for part in (choice.body, choice.orelse)]
    return any(nothing) and not all(nothing) and differs(choice.test, scope, evaluator)


def bound_by_some(bindings: Iterable[ValueBinding], evaluator: RankEvaluator) -> bool:
    """Whether a name is None, and only some replicas assign another value below a rank test."""
    assigned = [
        binding for binding in bindings if binding.kind == "value" and binding.value is not None
    ]
    others = [binding for binding in assigned if not is_none(binding.value)]
    if not others or len(others) == len(assigned):
        return False
    guards = [_guard_of(binding.value, binding.scope, evaluator) for binding in others]
    if None in guards:
        return False
    # If both branches of a test assign a value, all replicas have it.
    return len({id(test) for test, _ in filter(None, guards)}) == len(set(filter(None, guards)))


def returned_by_some(function: Function, evaluator: RankEvaluator) -> bool:
    """Whether `function` returns None on all but some replicas."""
    returned = [value for value in function.returns if not is_none(value)]
    if not returned or function.yields:
        return False
    if any(FIRST_DECORATOR.fullmatch(last_part(decorator)) for decorator in function.decorators):
        return True
    guards = [_guard_of(value, function, evaluator) for value in returned]
    if None in guards:
        return False
    return len({id(test) for test, _ in filter(None, guards)}) == len(set(filter(None, guards)))


def is_none(node: ast.AST | None) -> bool:
    """Whether `node` is written `None`."""
    return isinstance(node, ast.Constant) and node.value is None


def _guard_of(
    value: ast.AST | None, scope: Scope, evaluator: RankEvaluator
) -> tuple[ast.If, bool] | None:
    """Return the rank test that decides whether `value` is evaluated, and the result it needs."""
    above = parents(scope.module)
    node = value
    while node is not None and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        around = above.get(node)
        in_branch = isinstance(around, ast.If) and node is not around.test
        if isinstance(around, ast.If) and in_branch and differs(around.test, scope, evaluator):
            return around, node in around.body
        for block in (getattr(around, "body", None), getattr(around, "orelse", None)):
            if not isinstance(block, list) or node not in block:
                continue
            for before in block[: block.index(node)]:
                leaves = isinstance(before, ast.If) and not before.orelse and _leaves(before.body)
                if leaves and differs(before.test, scope, evaluator):
                    return before, False
        node = around
    return None


def _leaves(body: list[ast.stmt]) -> bool:
    """Whether a branch ends with a bare return."""
    match body[-1]:
        case ast.Return(value=value):
            return value is None or is_none(value)
    return False


def differs(test: ast.expr, scope: Scope, evaluator: RankEvaluator, depth: int = DEEPEST) -> bool:
    """Whether `test` differs between replicas: by its names, or by the origin of its parts."""
    match test:
        case ast.BoolOp(values=parts):
            return any(differs(part, scope, evaluator, depth) for part in parts)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return is_of_rank(operand, scope, evaluator) or differs(
                operand, scope, evaluator, depth
            )
        case ast.Compare(left=left, ops=[operator], comparators=[right]):
            return _compares(left, operator, right, scope, evaluator)
        case ast.Call() | ast.Name() | ast.Attribute():
            named = test.func if isinstance(test, ast.Call) else test
            if FIRST_NAME.fullmatch(last_part(named)):
                return True
            if isinstance(test, ast.Call) and _is_rank(test):
                return True  # another replica than the first
            return depth > 0 and _holds_test(test, scope, evaluator, depth - 1)
    return False


def _compares(
    left: ast.expr, operator: ast.cmpop, right: ast.expr, scope: Scope, evaluator: RankEvaluator
) -> bool:
    """Whether the test compares the replica index, rather than asking whether there is one: `rank != -1`."""
    if isinstance(operator, ast.Is | ast.IsNot):
        return False
    if not isinstance(operator, ast.In | ast.NotIn) and is_of_rank(right, scope, evaluator):
        left, right = right, left
    if not is_of_rank(left, scope, evaluator):
        return False
    if isinstance(right, ast.Constant) and right.value == 0:
        return not isinstance(operator, ast.GtE | ast.Lt)
    return not isinstance(right, ast.UnaryOp) and not is_none(right)


def is_of_rank(node: ast.expr, scope: Scope, evaluator: RankEvaluator) -> bool:
    """Whether `node` is the rank, or a number computed from it."""
    if isinstance(node, ast.BinOp):
        return any(is_of_rank(side, scope, evaluator) for side in (node.left, node.right))
    return _is_rank(node) or kind_of(evaluator.values(node, scope)) is Kind.INDEX


def _holds_test(
    node: ast.Call | ast.Name | ast.Attribute, scope: Scope, evaluator: RankEvaluator, depth: int
) -> bool:
    """Whether `node` is the result of such a test, held by a name or returned by a function."""
    if isinstance(node, ast.Call):
        functions = [f for f in evaluator.values(node.func, scope) if isinstance(f, Function)]
        return any(
            differs(value, function, evaluator, depth)
            for function in functions
            for value in function.returns
        )
    return any(
        binding.kind == "value"
        and binding.value is not None
        and differs(binding.value, binding.scope, evaluator, depth)
        for binding in evaluator.origins(node, scope)
    )

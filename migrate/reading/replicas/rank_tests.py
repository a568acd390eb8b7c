"""Which tests let the first replica alone pass, in whichever file of a project they stand.

`replicas/guards.py` knows more of the tests of one script; this knows those of all files, by their names.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from migrate.reading.calls.devices import kind_of
from migrate.reading.values.kind import Kind
from migrate.reading.values.words import FIRST_NAME, RANK_FUNCTION, RANK_NAME

if TYPE_CHECKING:
    from migrate.reading.calls.analysis import Analysis
    from migrate.reading.calls.scopes import Binding, Function, Scope
    from migrate.reading.project.project import Module

# What a test of whether there are several replicas names.
OF_RUN = re.compile(r"dist|world|ddp|init|parallel|multi|size|n_?gpu|num_gpu|rank", re.IGNORECASE)


def is_for_first(test: ast.expr, attributes: frozenset[str] = frozenset()) -> bool:
    """Whether `test` lets the first replica pass and no other: `rank == 0`, `not rank`, `env.chief`.

    Args:
        test: the test.
        attributes: those that are known to hold on the first replica only.
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
    """Whether `test` lets one replica of every host pass."""
    text = ast.unparse(test)
    return "local" in text.lower() or "%" in text


@lru_cache(maxsize=2)
def first_attributes(analysis: Analysis) -> frozenset[str]:
    """Return the attributes that the project makes the outcome of such a test, and nothing else.

    `self.chief = rank == 0`, a property that returns that, `Cluster(chief=rank == 0)`.
    """
    return frozenset(
        name for name in set(_first_attributes(analysis)) if not _is_else(name, analysis)
    )


@lru_cache(maxsize=2)
def first_functions(analysis: Analysis) -> frozenset[Function]:
    """Return the functions of a project whose result says whether this is the first replica.

    Of a context manager that is what it yields: `with main_only() as chosen:`.
    """
    return frozenset(
        function
        for scope in analysis.scopes.values()
        for function in scope.functions
        if (function.returns or function.yields) and _says_first(function, analysis)
    )


def _says_first(function: Function, analysis: Analysis) -> bool:
    """Whether `function` returns the outcome of such a test, and True where there is one replica only."""
    is_manager = function.is_a("contextmanager", "asynccontextmanager")
    results = function.yields if is_manager else function.returns
    tests = [value for value in results if not _is_true(value)]
    return bool(tests) and all(_asks(value, function, analysis) for value in tests)


def _asks(test: ast.expr | None, scope: Scope, analysis: Analysis) -> bool:
    """Whether `test` lets the first replica alone pass: by its names, or by what made what it compares."""
    if test is None:
        return False
    if is_for_first(test):
        return True
    match test:
        case ast.BoolOp(op=ast.And()):
            return any(_asks(value, scope, analysis) for value in test.values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _is_index(operand, scope, analysis)
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
            sides = (left, right) if isinstance(right, ast.Constant) else (right, left)
            is_zero = isinstance(sides[1], ast.Constant) and sides[1].value == 0
            return is_zero and _is_index(sides[0], scope, analysis)
    return False


def _is_index(node: ast.expr, scope: Scope, analysis: Analysis) -> bool:
    return kind_of(analysis.evaluator.values(node, scope)) is Kind.INDEX


def _is_true(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


@lru_cache(maxsize=256)
def parents(module: Module) -> dict[ast.AST, ast.AST]:
    """Return what is directly above each node of a module."""
    return {child: node for node in module.nodes for child in ast.iter_child_nodes(node)}


def last_part(node: ast.expr) -> str:
    """Return `c` of `a.b.c`, and of `c`; empty for anything else."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


@lru_cache(maxsize=2)
def unset_attributes(analysis: Analysis) -> frozenset[str]:
    """Return the attributes that the project makes None on the other replicas: `c.run_dir = None`."""
    found: set[str] = set()
    for scope in analysis.scopes.values():
        for test in scope.module.nodes if b"None" in scope.module.data else ():
            if isinstance(test, ast.If):
                of_others = test.body if _is_for_others(test.test) else []
                of_others = test.orelse if is_for_first(test.test) else of_others
                found |= set(_set_to_none(of_others))
    return frozenset(found)


def _is_for_others(test: ast.expr) -> bool:
    match test:
        case ast.Compare(left=left, ops=[ast.NotEq()], comparators=[ast.Constant(value=0)]):
            return _is_rank(left)
        case ast.UnaryOp(op=ast.Not()):
            return is_for_first(test.operand)
    return False


def _set_to_none(statements: list[ast.stmt]) -> Iterator[str]:
    for one in statements:
        match one:
            case ast.Assign(value=ast.Constant(value=None)):
                yield from (t.attr for t in one.targets if isinstance(t, ast.Attribute))


def _first_attributes(analysis: Analysis) -> Iterator[str]:
    for scope in analysis.scopes.values():
        tests = [one for one, around in scope.compared if _asks(one, around, analysis)]
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


def _is_else(name: str, analysis: Analysis) -> bool:
    """Whether the attribute `name` has other values too, or is an option."""
    for scope in analysis.scopes.values():
        if f"--{name}".encode() in scope.module.data:
            return True
        bindings = [binding for _, binding in scope.assigned.get(name, ())]
        for made in scope.classes:
            bindings += made.attributes.get(name, ())
        others = [one for one in bindings if not _is_parameter(one, name)]
        if not all(
            _is_for_one_process(one) or _asks(one.value, one.scope, analysis) for one in others
        ):
            return True
    return False


def _is_for_one_process(binding: Binding) -> bool:
    """Whether `binding` is True where there is one replica only: `else:` of `if dist.is_initialized():`."""
    if not _is_true(binding.value) or binding.value is None:
        return False
    above = parents(binding.scope.module)
    branch = above.get(above.get(binding.value, binding.value))
    return isinstance(branch, ast.If) and OF_RUN.search(ast.unparse(branch.test)) is not None


def _is_parameter(binding: Binding, name: str) -> bool:
    """Whether what is bound is the parameter `name`: `self.chief = chief`."""
    value = binding.value
    parameters = getattr(binding.scope, "parameters", ())
    return isinstance(value, ast.Name) and value.id == name and name in parameters


def _property(node: ast.AST, module: Module) -> Iterator[str]:
    """Yield the name of the property that `node` is a statement of."""
    above: ast.AST | None = parents(module).get(node)
    decorators = above.decorator_list if isinstance(above, ast.FunctionDef) else ()
    if any(last_part(one) in ("property", "cached_property") for one in decorators):
        assert isinstance(above, ast.FunctionDef)
        yield above.name


def _is_rank(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return RANK_FUNCTION.fullmatch(last_part(node.func)) is not None
    return RANK_NAME.fullmatch(last_part(node)) is not None

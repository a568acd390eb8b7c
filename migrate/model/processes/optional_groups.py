"""Process groups that a program joins only if one of its options says so.

`torch_xla.launch` starts a replica on every chip for any options. Without the group, each replica trains a
model of its own, and no error reports it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from migrate.model.calls.kinds import OptionsValue
from migrate.model.calls.rank_tests import last_part, parents
from migrate.model.calls.scopes import Function, Scope
from migrate.model.processes.launching import joining_of, joins_of
from migrate.syntax.walk_ast import walk

if TYPE_CHECKING:
    from migrate.model.calls.analysis import Analysis

# A project without one of these words starts no replicas of torch_xla.
LAUNCHES = re.compile(rb"torch_xla\.launch\b|\bxmp\.spawn\b|xla_multiprocessing|shims\.launch")
# An option with one of these in its name is the number of processes, or the index of this one.
OF_PROCESSES = re.compile(r"rank|world|size|gpu|node|proc|local|num|dist_url", re.IGNORECASE)
DEEPEST = 6


@lru_cache(maxsize=2)
def optional_groups(analysis: Analysis) -> Mapping[Path, Mapping[ast.Call, tuple[str, bool]]]:
    """Return the calls of each file that join a group under an option, with its test.

    Returns:
        The value has the test, and whether it is off by default.
    """
    modules = [scope.module for scope in analysis.scopes.values()]
    if not any(LAUNCHES.search(module.data) for module in modules):
        return {}
    groups: dict[Path, dict[ast.Call, tuple[str, bool]]] = {}
    tests = _Tests(analysis)
    joins = list(_joins(analysis))
    joining = {call for call, _ in joins}
    for call, scope in joins:
        for test in _tests_around(call, scope, joining):
            off = tests.may_be_off(test, scope)
            if off is not None:
                groups.setdefault(scope.module.path, {})[call] = ast.unparse(test), off
                break
    return groups


def _joins(analysis: Analysis) -> Iterator[tuple[ast.Call, Scope]]:
    """Yield the calls that join a process group, directly or through a function."""
    joining = joining_of(analysis)
    for top in analysis.scopes.values():
        for call, scope in analysis.calls_in(top):
            runs = not joining.isdisjoint(analysis.running[call].functions)
            if runs or call in joins_of(analysis):
                yield call, scope


def _tests_around(call: ast.Call, scope: Scope, joining: set[ast.Call]) -> Iterator[ast.expr]:
    """Yield the tests that must hold for `call` to run, up to the enclosing function.

    A test whose other branch has one of the calls `joining` decides nothing.
    """
    above = parents(scope.module)
    below: ast.AST = call
    node = above.get(call)
    while node is not None and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        if isinstance(node, ast.If) and below in node.body:
            other = (part for statement in node.orelse for part in walk(statement))
            if joining.isdisjoint(part for part in other if isinstance(part, ast.Call)):
                yield node.test
        below, node = node, above.get(node)


class _Tests:
    """Tests that depend on an option alone.

    Args:
        analysis: the project.
    """

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis
        self._evaluator = analysis.evaluator

    def may_be_off(self, test: ast.expr, scope: Scope, depth: int = 0) -> bool | None:
        """Return whether a test is off by default; None if no option alone decides it."""
        if depth > DEEPEST:
            return None
        match test:
            case ast.BoolOp(op=ast.And(), values=values):
                parts = [self.may_be_off(value, scope, depth + 1) for value in values]
                known = [part for part in parts if part is not None]
                return any(known) if known else None
            case ast.Name():
                return self._of_name(test, scope, depth)
            case ast.Attribute() if not OF_PROCESSES.search(test.attr):
                return self._of_attribute(test, scope)
        return None

    def _of_name(self, test: ast.Name, scope: Scope, depth: int) -> bool | None:
        bindings = list(self._evaluator.bindings_of(test.id, scope))
        answers = [
            self.may_be_off(binding.value, binding.scope, depth + 1)
            if binding.kind == "value" and binding.value is not None
            else None
            for binding in bindings
        ]
        return any(answers) if answers and None not in answers else None

    def _of_attribute(self, test: ast.Attribute, scope: Scope) -> bool | None:
        values = self._evaluator.values(test.value, scope)
        options = [value for value in values if isinstance(value, OptionsValue)]
        if options:
            assigned = self._evaluator.options_set
            if any(test.attr in assigned.get(option.path, ()) for option in options):
                return None  # it follows from something else
            return self._by_default(test.attr)
        if values or list(self._evaluator.members_of(test.value, test.attr, scope)):
            return None
        return self._of_property(test.attr)

    def _by_default(self, name: str) -> bool | None:
        """Return whether a command-line option is off by default; None if it is on."""
        declared = [
            call
            for top in self._analysis.scopes.values()
            for call, _ in self._analysis.calls_in(top)
            if last_part(call.func) == "add_argument" and name in _names(call)
        ]
        if not declared:
            return None
        return True if all(_is_off(call) for call in declared) else None

    def _of_property(self, name: str) -> bool | None:
        """Return False if an attribute of an object named by a setting is a property, False in some classes.

        The class is unknown, because the value of the default is unknown.
        """
        properties = [
            function
            for top in self._analysis.scopes.values()
            for function in top.functions
            if function.name == name and function.owner is not None
        ]
        results = [_constant(function) for function in properties]
        return False if False in results and True in results and None not in results else None


def _constant(function: Function) -> bool | None:
    """Return the constant that a property returns; None for another method."""
    if not function.is_a("property") or len(function.returns) != 1:
        return None
    value = getattr(function.returns[0], "value", None)
    return value if isinstance(value, bool) else None


def _names(call: ast.Call) -> list[str]:
    """Return the attributes that may hold the value of a declared option."""
    named = [k.value for k in call.keywords if k.arg == "dest"] or call.args
    texts = [constant.value for constant in named if isinstance(constant, ast.Constant)]
    return [str(text).lstrip("-").replace("-", "_") for text in texts]


def _is_off(call: ast.Call) -> bool:
    """Whether an option is false if it is not given."""
    named = {keyword.arg: keyword.value for keyword in call.keywords}
    if "default" in named:
        default = named["default"]
        return isinstance(default, ast.Constant) and not default.value
    action = named.get("action")
    if isinstance(action, ast.Constant):
        return action.value in ("store_true", "store")
    return action is None and "required" not in named

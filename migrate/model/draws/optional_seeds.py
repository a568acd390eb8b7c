"""Seeds that a script sets only if one is given: `if args.seed is not None: set_seed(args.seed)`.

Without a given seed, nothing seeds the script.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from migrate.model.calls.callers import callers_of
from migrate.model.calls.option_defaults import COMPARED, UNKNOWN, option_default, option_names
from migrate.model.calls.rank_tests import last_part
from migrate.model.calls.scopes import Function, Scope
from migrate.syntax.walk_ast import walk

if TYPE_CHECKING:
    from migrate.model.calls.analysis import Analysis

Site = tuple[ast.Call, Scope]


class OptionalSeeds:
    """Search for seeds that are set only if one is given, and for the code that runs before.

    Args:
        analysis: the project.
    """

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis
        self._tests: dict[Scope, dict[ast.Call, list[ast.expr]]] = {}

    def is_optional(self, site: Site, seen: frozenset[Scope] = frozenset()) -> bool:
        """Whether a test of the seed itself decides if the call at `site` runs."""
        call, scope = site
        if any(self._asks_for_the_seed(test, call) for test in self._tests_around(call, scope)):
            return True
        if not isinstance(scope, Function) or scope in seen:
            return False
        callers = callers_of(self._analysis).get(scope, ())
        return bool(callers) and all(self.is_optional(c, seen | {scope}) for c in callers)

    def comes_after(self, site: Site, firsts: Iterable[Site]) -> bool:
        """Whether the call at `site` runs after one of `firsts`, by the lines in the scopes that run both."""
        lines = self._lines(site)
        for first in firsts:
            before = self._lines(first)
            pairs = [(before[s], lines[s]) for s in lines.keys() & before.keys()]
            differing = [(a, b) for a, b in pairs if a != b]
            if differing and all(a < b for a, b in differing):
                return True
        return False

    def _lines(self, site: Site) -> dict[Scope, int]:
        """Return the scopes that reach the call at `site`, each with its first line that does."""
        lines: dict[Scope, int] = {}
        waiting = [site]
        while waiting:
            call, scope = waiting.pop()
            if scope not in lines and isinstance(scope, Function):
                waiting += callers_of(self._analysis).get(scope, ())
            lines[scope] = min(call.lineno, lines.get(scope, call.lineno))
        return lines

    def _tests_around(self, call: ast.Call, scope: Scope) -> list[ast.expr]:
        top = scope
        while top.parent is not None:
            top = top.parent
        if top not in self._tests:
            tests: dict[ast.Call, list[ast.expr]] = defaultdict(list)
            _note(scope.module.tree, [], tests)
            self._tests[top] = tests
        return self._tests[top].get(call, [])

    def _asks_for_the_seed(self, test: ast.expr, call: ast.Call) -> bool:
        """Whether `test` reads the seed of `call`, and may fail."""
        for asked in _asked(test):
            arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
            names = {ast.dump(node) for arg in arguments for node in walk(arg)}
            if ast.dump(asked) in names:
                default = self._defaults.get(last_part(asked), ...)
                return default is ... or not _holds(test, asked, default)
        return False

    @cached_property
    def _defaults(self) -> dict[str, object]:
        """Defaults of the project's command-line options."""
        defaults: dict[str, object] = {}
        for call, _ in self._analysis.evaluator.calls():
            if last_part(call.func) != "add_argument":
                continue
            default = option_default(call)
            if default is not UNKNOWN:
                defaults |= dict.fromkeys(option_names(call), default)
        return defaults


def _note(
    node: ast.AST, tests: list[ast.expr], tests_by_call: dict[ast.Call, list[ast.expr]]
) -> None:
    """Record the tests that decide whether each call below `node` runs, without inner functions."""
    if isinstance(node, ast.Call):
        tests_by_call[node] = tests
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        tests = []
    for name, value in ast.iter_fields(node):
        around = tests
        if isinstance(node, ast.If) and name == "body" and not _seeds(node.orelse):
            around = [*tests, node.test]
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST):
                continue
            _note(child, around, tests_by_call)
            if isinstance(child, ast.If) and isinstance(child.body[-1], ast.Return):
                around = [*around, ast.UnaryOp(ast.Not(), child.test)]


def _seeds(statements: list[ast.stmt]) -> bool:
    """Whether `statements` call a function with the name of a seeding function."""
    return any(
        isinstance(node, ast.Call) and "seed" in last_part(node.func).lower()
        for statement in statements
        for node in walk(statement)
    )


def _asked(test: ast.expr) -> Iterator[ast.expr]:
    """Yield the names and attributes that `test` reads."""
    if isinstance(test, ast.UnaryOp):
        yield from _asked(test.operand)
    elif isinstance(test, ast.BoolOp):
        for value in test.values:
            yield from _asked(value)
    elif isinstance(test, ast.Compare):
        yield test.left
    elif isinstance(test, ast.Name | ast.Attribute):
        yield test


def _holds(test: ast.expr, asked: ast.expr, value: object) -> bool:
    """Whether `test` holds if `asked` is `value`; parts that ask for something else count as true."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return not _holds(test.operand, asked, value)
    if isinstance(test, ast.BoolOp):
        parts = [_holds(part, asked, value) for part in test.values]
        return all(parts) if isinstance(test.op, ast.And) else any(parts)
    if ast.dump(test) == ast.dump(asked):
        return bool(value)
    if isinstance(test, ast.Compare) and ast.dump(test.left) == ast.dump(asked):
        try:
            return COMPARED[type(test.ops[0])](value, ast.literal_eval(test.comparators[0]))
        except (KeyError, TypeError, ValueError):
            return False
    return True

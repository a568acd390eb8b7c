"""Items of dictionaries and tuples, followed through names, spreads, arguments and results.

`options["rank"]` is `rank` in `options = dict(rank=rank)`, also where the dictionary is spread into another
one (`{**options, "lr": 1}`), passed to a function, or what a function takes as `**kwargs`.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Protocol

from migrate.model.calls.kinds import Values
from migrate.model.calls.scopes import Class, Function, Scope, ValueBinding

Item = tuple[ast.expr, Scope]
Parameter = tuple[Function | Class, str]
# Maximum number of names, spreads and calls followed from an expression to the display of a dictionary.
DEEPEST = 8
# Methods and functions that return a dictionary of the same items.
COPIES = frozenset({"copy", "deepcopy"})


class ContentsEvaluator(Protocol):
    """Part of the project's evaluator that this module uses."""

    def values(self, node: ast.expr | None, scope: Scope) -> Values:
        """Return the possible values of an expression."""

    def calls(self) -> Iterable[tuple[ast.Call, Scope]]:
        """Return all calls of the project."""

    def bindings_of(self, name: str, scope: Scope) -> Iterator[ValueBinding]:
        """Yield the bindings of a name."""

    def origins(self, node: ast.Name | ast.Attribute, scope: Scope) -> Iterator[ValueBinding]:
        """Yield the assignments that a name or an attribute may stand for."""

    def ask_for(self, parameter: Parameter) -> None:
        """Record that a value depends on a parameter."""


class Contents:
    """Displays of dictionaries and tuples that expressions stand for.

    Args:
        evaluator: the evaluator of the project.
    """

    def __init__(self, evaluator: ContentsEvaluator) -> None:
        self._evaluator = evaluator
        self._passed: dict[Parameter, list[Item]] = defaultdict(list)
        self._gathered: dict[tuple[ast.Call, Function, str], ast.expr] = {}
        self._updates: dict[tuple[Scope, str], list[Item]] | None = None

    def hold(self, to: Parameter, node: ast.expr, scope: Scope) -> bool:
        """Record that a call passes `node` for a parameter; return whether this is a new display."""
        if (node, scope) in self._passed[to] or next(self.displays(node, scope), None) is None:
            return False
        self._passed[to].append((node, scope))
        return True

    def gathered(self, call: ast.Call, function: Function, display: ast.expr) -> ast.expr:
        """Return the display that `function` gathers as `*args` or `**kwargs`; one node for each call."""
        key = call, function, type(display).__name__
        known = self._gathered.get(key)
        if known is None:
            known = self._gathered[key] = ast.copy_location(display, call)
            ast.fix_missing_locations(known)
        return known

    def displays(self, node: ast.expr, scope: Scope, depth: int = 0) -> Iterator[Item]:
        """Yield the displays `{…}`, `dict(…)`, `(…)` and `[…]` that `node` stands for."""
        if depth > DEEPEST:
            return
        match node:
            case ast.Dict() | ast.Tuple() | ast.List():
                yield node, scope
            case ast.Name(id=name):
                for binding in self._evaluator.bindings_of(name, scope):
                    yield from self._bound(binding, depth)
            case ast.Attribute():
                for binding in self._evaluator.origins(node, scope):
                    yield from self._bound(binding, depth)
            case (
                ast.IfExp(body=one, orelse=other)
                | ast.BinOp(left=one, op=ast.BitOr(), right=other)
                | ast.BoolOp(values=[one, other])
            ):
                yield from self.displays(one, scope, depth + 1)
                yield from self.displays(other, scope, depth + 1)
            case ast.NamedExpr(value=value):
                yield from self.displays(value, scope, depth + 1)
            case ast.DictComp(
                value=ast.Name(id=value),
                generators=[
                    ast.comprehension(
                        target=ast.Tuple(elts=[_, ast.Name(id=item)]),
                        iter=ast.Call(func=ast.Attribute(value=of, attr="items")),
                    )
                ],
            ) if value == item:
                yield from self.displays(of, scope, depth + 1)
            case ast.Call(func=ast.Name(id="dict")):
                yield node, scope
            case ast.Call(func=ast.Attribute(value=of, attr=method), args=args) if method in COPIES:
                yield from self.displays(args[0] if args else of, scope, depth + 1)
            case ast.Call(func=func):
                for called in self._evaluator.values(func, scope):
                    if isinstance(called, Function):
                        for returned in called.returns:
                            yield from self.displays(returned, called, depth + 1)

    def _bound(self, binding: ValueBinding, depth: int) -> Iterator[Item]:
        if binding.kind == "value" and binding.value is not None:
            yield from self.displays(binding.value, binding.scope, depth + 1)
        elif binding.kind == "param" and isinstance(binding.scope, Function):
            parameter = binding.scope, binding.name
            self._evaluator.ask_for(parameter)
            for node, scope in list(self._passed.get(parameter, ())):
                yield from self.displays(node, scope, depth + 1)

    def at_key(self, node: ast.expr, key: str, scope: Scope, depth: int = 0) -> Iterator[Item]:
        """Yield the expressions that displays put at `key` of `node`."""
        if depth > DEEPEST:
            return
        for display, at in [*self.displays(node, scope), *self._updated(node, scope)]:
            if isinstance(display, ast.Dict):
                for name, value in zip(display.keys, display.values, strict=True):
                    if name is None:
                        yield from self.at_key(value, key, at, depth + 1)
                    elif not isinstance(name, ast.Constant) or name.value == key:
                        yield value, at
            elif isinstance(display, ast.Call):
                for keyword in display.keywords:
                    if keyword.arg is None:
                        yield from self.at_key(keyword.value, key, at, depth + 1)
                    elif keyword.arg == key:
                        yield keyword.value, at
                for arg in display.args:
                    yield from self.at_key(arg, key, at, depth + 1)

    def spread(self, node: ast.expr, scope: Scope, depth: int = 0) -> list[Item] | None:
        """Return the elements of `*node`; None if no single tuple or list shows them."""
        displays = [*self.displays(node, scope)]
        if len(displays) != 1:
            return None
        display, at = displays[0]
        if not isinstance(display, ast.Tuple | ast.List):
            return None
        items: list[Item] = []
        for element in display.elts:
            if not isinstance(element, ast.Starred):
                items.append((element, at))
                continue
            inner = self.spread(element.value, at, depth + 1) if depth < DEEPEST else None
            if inner is None:
                return None
            items += inner
        return items

    def _updated(self, node: ast.expr, scope: Scope) -> list[Item]:
        """Return the calls `node.update(…)` in the same function, or of an attribute in the same file."""
        if not isinstance(node, ast.Name | ast.Attribute):
            return []
        if self._updates is None:
            self._updates = defaultdict(list)
            for call, at in self._evaluator.calls():
                match call.func:
                    case ast.Attribute(value=ast.Name() | ast.Attribute() as of, attr="update"):
                        where = at if isinstance(of, ast.Name) else at.top
                        self._updates[where, ast.unparse(of)].append((call, at))
        where = scope if isinstance(node, ast.Name) else scope.top
        return self._updates.get((where, ast.unparse(node)), []) if self._updates else []

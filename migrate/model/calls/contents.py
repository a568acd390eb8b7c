"""Items of dictionaries and tuples, followed through names, spreads, arguments and results.

`options["rank"]` is `rank` in `options = dict(rank=rank)`, also where the dictionary is spread into another
one (`{**options, "lr": 1}`), passed to a function, or what a function takes as `**kwargs`.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from migrate.model.calls.kinds import Values
from migrate.model.calls.scopes import Class, Function, Scope, ValueBinding

Item = tuple[ast.expr, Scope]
Parameter = tuple[Function | Class, str]
# Maximum number of names, spreads and calls followed from an expression to the display of a dictionary.
DEEPEST = 8
# Methods and functions that return a dictionary of the same items.
COPIES = frozenset({"copy", "deepcopy"})
# Functions and classes that return a container of the elements of their arguments.
COLLECTIONS = frozenset(
    {"list", "tuple", "set", "dict", "sorted", "reversed", "iter", "zip", "enumerate", "filter"}
    | {"chain", "ModuleList"}
)
# Methods of a dictionary that return what it holds.
VIEWS = frozenset({"values", "items"})


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
        """Record that a call passes `node` for a parameter; return whether this is a new container."""
        if (node, scope) in self._passed.get(to, ()):
            return False
        if not any(map(_is_container, _reached((node, scope), self._stands_for))):
            return False
        self._passed[to].append((node, scope))
        return True

    def given(self, binding: ValueBinding) -> tuple[Item, ...]:
        """Return the containers that calls pass for a parameter, as the calls write them.

        Args:
            binding: binding of the parameter; for other bindings nothing is returned.
        """
        if binding.kind != "param" or not isinstance(binding.scope, Function):
            return ()
        parameter = binding.scope, binding.name
        self._evaluator.ask_for(parameter)
        return tuple(self._passed.get(parameter, ()))

    def gathered(self, call: ast.Call, function: Function, display: ast.expr) -> ast.expr:
        """Return the display that `function` gathers as `*args` or `**kwargs`; one node for each call."""
        key = call, function, type(display).__name__
        known = self._gathered.get(key)
        if known is None:
            known = self._gathered[key] = ast.copy_location(display, call)
            ast.fix_missing_locations(known)
        return known

    def displays(self, node: ast.expr, scope: Scope) -> Iterator[Item]:
        """Yield the displays `{…}`, `dict(…)`, `(…)` and `[…]` that `node` stands for, each once."""
        for inner, at in _reached((node, scope), self._stands_for):
            match inner:
                case ast.Dict() | ast.Tuple() | ast.List() | ast.Call(func=ast.Name(id="dict")):
                    yield inner, at

    def _stands_for(self, item: Item) -> Iterator[Item]:
        """Yield the expressions whose value an expression has, one step further."""
        node, scope = item
        match node:
            case ast.Name(id=name):
                for binding in self._evaluator.bindings_of(name, scope):
                    yield from self._bound(binding)
            case ast.Attribute():
                for binding in self._evaluator.origins(node, scope):
                    yield from self._bound(binding)
            case (
                ast.IfExp(body=one, orelse=other)
                | ast.BinOp(left=one, op=ast.BitOr(), right=other)
                | ast.BoolOp(values=[one, other])
            ):
                yield from ((one, scope), (other, scope))
            case ast.NamedExpr(value=value):
                yield value, scope
            case ast.DictComp(
                value=ast.Name(id=value),
                generators=[
                    ast.comprehension(
                        target=ast.Tuple(elts=[_, ast.Name(id=key)]),
                        iter=ast.Call(func=ast.Attribute(value=of, attr="items")),
                    )
                ],
            ) if value == key:
                yield of, scope
            case ast.Call(func=ast.Name(id="dict")):
                return
            case ast.Call(func=ast.Attribute(value=of, attr=method), args=args) if method in COPIES:
                yield args[0] if args else of, scope
            case ast.Call(func=func):
                for called in self._evaluator.values(func, scope):
                    if isinstance(called, Function):
                        yield from ((returned, called) for returned in called.returns)

    def _bound(self, binding: ValueBinding) -> Iterator[Item]:
        if binding.kind == "value" and binding.value is not None:
            yield binding.value, binding.scope
        yield from self.given(binding)

    def at_key(self, node: ast.expr, key: str, scope: Scope) -> Iterator[Item]:
        """Yield the expressions that displays put at `key` of `node`."""
        for inner, at in _reached((node, scope), self._spread_in):
            for display, of in self._filling(inner, at):
                match display:
                    case ast.Dict(keys=keys, values=values):
                        for name, value in zip(keys, values, strict=True):
                            if name is not None and _may_be(name, key):
                                yield value, of
                    case ast.Call(keywords=keywords):
                        yield from ((k.value, of) for k in keywords if k.arg == key)

    def _spread_in(self, item: Item) -> Iterator[Item]:
        """Yield the dictionaries whose items `item` takes over: `{**options}`, `dict(options)`."""
        for display, at in self._filling(*item):
            match display:
                case ast.Dict(keys=keys, values=values):
                    yield from (
                        (v, at) for name, v in zip(keys, values, strict=True) if name is None
                    )
                case ast.Call(args=args, keywords=keywords):
                    yield from ((k.value, at) for k in keywords if k.arg is None)
                    yield from ((arg, at) for arg in args)

    def _filling(self, node: ast.expr, scope: Scope) -> list[Item]:
        """Return the displays and the calls of `update` that put items into `node`."""
        return [*self.displays(node, scope), *self._updated(node, scope)]

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


def _is_container(item: Item) -> bool:
    match item[0]:
        case ast.Dict() | ast.Tuple() | ast.List() | ast.Set():
            return True
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            return True
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
            return name in COLLECTIONS or name in VIEWS
    return False


def _may_be(node: ast.expr, key: str) -> bool:
    return not isinstance(node, ast.Constant) or node.value == key


def _reached(start: Item, further: Callable[[Item], Iterable[Item]]) -> Iterator[Item]:
    """Yield `start` and the expressions that it leads to, the nearest first, each once."""
    seen, nearest = {start}, [start]
    for _ in range(DEEPEST + 1):
        farther: list[Item] = []
        for item in nearest:
            yield item
            for other in further(item):
                if other not in seen:
                    seen.add(other)
                    farther.append(other)
        nearest = farther

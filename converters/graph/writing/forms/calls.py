"""Calls of modules in what is written: which module each is of, and the same calls in another way."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from typing import Any

from converters.graph.expression import code
from converters.graph.writing.forms.branches import Way
from converters.graph.writing.holes import fill
from converters.graph.writing.original.comments import commented, of
from converters.graph.writing.training import MODE
from converters.mapping.paths import has_layers


class OtherWayError(Exception):
    """A call in a loop over modules that would be called in several ways."""


def rewired(
    module: Any, body: Sequence[ast.stmt], result: ast.expr, ways: Mapping[int, Way]
) -> tuple[list[ast.stmt], ast.expr, Counter[int]]:
    """Statements and result of a module's forward with calls of other modules as these are called now.

    Args:
        module: the original's.
        body: statements.
        result: what is returned.
        ways: id of a module → how it is called.

    Returns:
        The statements, the result, and how often each module is called.

    Raises:
        OtherWayError: modules that one loop calls are called in different ways.
    """
    rewire = _Rewire(module, ways)
    statements = [rewire.visit(fill(statement, lambda hole: hole)) for statement in body]
    returned = rewire.visit(fill(result, lambda hole: hole))
    return statements, returned, rewire.count


class _Rewire(ast.NodeTransformer):
    def __init__(self, module: Any, ways: Mapping[int, Way]) -> None:
        self.module, self.ways = module, ways
        self.loops: dict[str, list[Any]] = {}
        self.count: Counter[int] = Counter()

    def visit_For(self, node: ast.For) -> ast.For:
        lists = [node.iter]
        targets = [node.target]
        if isinstance(node.iter, ast.Call) and isinstance(node.target, ast.Tuple):  # zip
            lists, targets = node.iter.args, node.target.elts
        for target, list_node in zip(targets, lists, strict=False):
            lists_called = self._called(list_node)
            if isinstance(target, ast.Name) and len(lists_called) == 1:
                self.loops[target.id] = list(lists_called[0]._modules.values())
        node.body = [self.visit(statement) for statement in node.body]
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.Assign:
        way = self._way(node.value)
        if way is None:
            node.value = self.visit(node.value)
            return node
        assert isinstance(node.value, ast.Call)
        node.value = self._call(node.value, way)
        if way.results > len(way.places):
            old = node.targets[0]
            targets = [old] if len(way.places) == 1 else list(getattr(old, "elts", ()))
            if len(targets) != len(way.places):
                raise OtherWayError
            names: list[ast.expr] = [ast.Name("_", ast.Store()) for _ in range(way.results)]
            for place, target in zip(way.places, targets, strict=True):
                names[place] = target
            node.targets = [ast.Tuple(names, ast.Store())]
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        way = self._way(node)
        if way is None:
            self.generic_visit(node)
            return node
        call = self._call(node, way)
        if way.results == len(way.places):
            return call
        if len(way.places) != 1:
            raise OtherWayError
        return commented(code("{call}[{place}]", call=call, place=way.places[0]), of(node))

    def _call(self, node: ast.Call, way: Way) -> ast.Call:
        mode = [keyword for keyword in node.keywords if keyword.arg == MODE]
        if len(node.args) != len(way.arguments) or len(mode) < len(node.keywords):
            raise OtherWayError
        arguments = dict(
            zip(way.arguments, (self.visit(argument) for argument in node.args), strict=True)
        )
        named = [
            ast.keyword(name, arguments.get(name, ast.Constant(None))) for name in way.optional
        ]
        rewired_call = ast.Call(
            node.func, [arguments[name] for name in way.needed], [*named, *mode]
        )
        return commented(rewired_call, of(node))

    def _way(self, node: ast.expr) -> Way | None:
        """The new call of the modules of a call; None if unchanged."""
        if not isinstance(node, ast.Call):
            return None
        modules = self._called(node.func)
        for module in modules:
            self.count[id(module)] += 1
        ways = {self.ways.get(id(module)) for module in modules}
        if len(ways) > 1:
            raise OtherWayError
        return ways.pop() if ways else None

    def _called(self, node: ast.expr) -> list[Any]:
        """The modules that an expression is: one, those that a loop goes over, or none."""
        match node:
            case ast.Name(id="self"):
                return [self.module]
            case ast.Name(id=name):
                return self.loops.get(name, [])
            case ast.Attribute(value=value, attr=name):
                inner = self._called(value)
                if name == "layers" and all(has_layers(module) for module in inner):
                    return inner
                modules = [module._modules.get(name) for module in inner]
            case ast.Subscript(value=value, slice=ast.Constant(value=key)):
                modules = [_item(module, key) for module in self._called(value)]
            case ast.Call(func=ast.Name(id="getattr"), args=[value, ast.Constant(value=name)]):
                modules = [module._modules.get(name) for module in self._called(value)]
            case _:
                return []
        return [module for module in modules if module is not None]


def _item(module: Any, key: Any) -> Any:
    if isinstance(key, int):
        below = list(module._modules.values())
        return below[key] if key < len(below) else None
    return module._modules.get(key)


def tidied(body: Sequence[ast.stmt], result: ast.expr) -> tuple[list[ast.stmt], ast.expr]:
    """Statements without arguments that are None, and without names of results that nothing reads."""
    turns = {
        node.id
        for statement in body
        for loop in ast.walk(statement)
        if isinstance(loop, ast.For)
        for node in ast.walk(loop.target)
        if isinstance(node, ast.Name)
    }
    tidied_body = [_TidyCalls(turns).visit(statement) for statement in body]
    result = _TidyCalls(turns).visit(result)
    read = {
        node.id
        for tree in (*tidied_body, result)
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    for statement in tidied_body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
                for name in node.targets[0].elts:
                    if isinstance(name, ast.Name) and name.id not in read:
                        name.id = "_"
    return tidied_body, result


class _TidyCalls(ast.NodeTransformer):
    def __init__(self, turns: Set[str]) -> None:
        self.turns = turns

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        at: ast.AST = node.func
        while isinstance(at, ast.Attribute | ast.Subscript):
            at = at.value
        if isinstance(at, ast.Name) and at.id in {"self", *self.turns}:
            node.keywords = [
                keyword
                for keyword in node.keywords
                if not (isinstance(keyword.value, ast.Constant) and keyword.value.value is None)
            ]
        return node

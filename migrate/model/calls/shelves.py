"""Classes and functions that a project stores by name, and the expressions that take one out again.

A decorator that puts the decorated class into a dictionary is an example, whatever it is called; so are
`LOSSES["l1"] = L1`, a method of a registry's class, and `__init_subclass__`. A shelf is where they are
stored: the variable that holds the dictionary or the registry, or the class that has the dictionary. What
`LOSSES.build(config)` makes is of one of the classes on the shelf `LOSSES`.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache
from itertools import chain

from migrate.model.calls.analysis import Analysis
from migrate.model.calls.kinds import ClassInstance, ProjectModule
from migrate.model.calls.scopes import Class, Function, ModuleScope, Scope, ValueBinding

Stored = Class | Function
Shelf = ValueBinding | Class | ModuleScope
Item = tuple[ast.expr, Scope]
Parameter = tuple[Function | Class, str]
# Bindings of a variable that is assigned: alone, or as part of a tuple.
ASSIGNED = frozenset({"value", "item"})
# Names, calls and parameters followed from an object to the expression that made it.
MOST_STEPS = 8
# Functions that store by another function that stores.
MOST_HELPERS = 3
# Python functions that look up a name in a module or in a class.
LOOKS_UP = frozenset({"getattr", "globals", "locals", "vars", "eval"})


class Shelves:
    """Storage of classes and functions by name in a project.

    Args:
        analysis: the project.
    """

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis
        self._evaluator = analysis.evaluator
        self._on: dict[Shelf, dict[Stored, None]] = defaultdict(dict)
        # The functions that store an argument of theirs, each with the containers.
        self._storing: dict[Scope, list[Item]] = defaultdict(list)
        self._steps: dict[Item, tuple[list[Shelf], list[Item]]] = {}
        self._find_storing()
        for scope in analysis.scopes.values():
            self._store_definitions(scope)
            self._store_by_statements(scope)
        self._store_by_calls()
        self.stored = frozenset(item for shelf in self._on.values() for item in shelf)
        # Whether the project looks up classes by their names in a module.
        self.looks_up = any(getattr(call.func, "id", "") in LOOKS_UP for call in analysis.running)

    def _find_storing(self) -> None:
        for scope in self._analysis.scopes.values():
            for puts in scope.put.values():
                for container, binding in puts:
                    self._note_storing(binding.value, container, binding.scope)
        calls = [(call, ran) for call, ran in self._analysis.running.items() if call.args]
        for call, ran in calls:
            match call:
                case ast.Call(func=ast.Name(id="setattr"), args=[holder, _, value]):
                    self._note_storing(value, holder, ran.scope)
                case ast.Call(
                    func=ast.Attribute(value=holder, attr="update"), args=[ast.Dict(values=values)]
                ):
                    for value in values:
                        self._note_storing(value, holder, ran.scope)
        for _ in range(MOST_HELPERS):
            for call, ran in calls:
                for function in ran.functions:
                    for holder, at in list(self._storing.get(function, ())):
                        method = call.func
                        if self._is_own(holder, at) and isinstance(method, ast.Attribute):
                            holder, at = method.value, ran.scope
                        for argument in call.args:
                            self._note_storing(argument, holder, at, ran.scope)

    def _note_storing(
        self, value: ast.expr | None, container: ast.expr, at: Scope, scope: Scope | None = None
    ) -> None:
        """Record the functions around `scope` if `value` is a parameter of one of them."""
        around: Scope | None = scope or at
        inner: list[Function] = []
        while isinstance(value, ast.Name) and isinstance(around, Function):
            inner.append(around)
            if any(binding.kind == "param" for binding in around.bindings.get(value.id, ())):
                while isinstance(around.parent, Function):
                    around = around.parent
                    inner.append(around)
                for function in inner:
                    if (container, at) not in self._storing[function]:
                        self._storing[function].append((container, at))
                return
            around = around.parent

    @staticmethod
    def _is_own(container: ast.expr, scope: Scope) -> bool:
        """Whether a container is an attribute of the object, or of the class, whose method stores."""
        root = container
        while isinstance(root, ast.Attribute | ast.Subscript):
            root = root.value
        around: Scope | None = scope
        while isinstance(around, Function):
            if around.is_bound and isinstance(root, ast.Name):
                return around.parameters[:1] == [root.id]
            around = around.parent
        return False

    def _store_definitions(self, scope: ModuleScope) -> None:
        definitions: list[Stored] = [*scope.classes, *scope.functions]
        for item in definitions:
            for decorator in item.decorators:
                called = decorator.func if isinstance(decorator, ast.Call) else decorator
                for shelf in self._stored_by(called, item.parent or scope):
                    self._on[shelf][item] = None
        for class_ in scope.classes:
            for ancestor in self._evaluator.ancestors(class_):
                method = ancestor.bindings.get("__init_subclass__", ())
                if ancestor is not class_ and any(b.scope in self._storing for b in method):
                    self._on[ancestor][class_] = None

    def _stored_by(self, called: ast.expr, scope: Scope) -> Iterator[Shelf]:
        """Yield the shelves on which a call of `called` puts its argument."""
        receiver = called.value if isinstance(called, ast.Attribute) else called
        functions = [*self._functions(called, scope)]
        for function in functions:
            for container, at in self._storing.get(function, ()):
                if self._is_own(container, at):
                    yield from self._shelves(receiver, scope)
                    if function.owner is not None:
                        yield from self._shared(container, function.owner)
                else:
                    yield from self._shelves(container, at)
        if not functions and isinstance(called, ast.Attribute):  # a registry of a library
            yield from (s for s in self._shelves(receiver, scope) if isinstance(s, ValueBinding))

    def _functions(self, called: ast.expr, scope: Scope) -> Iterator[Function]:
        for value in self._evaluator.values(called, scope):
            if isinstance(value, Function):
                yield value
            elif isinstance(value, ClassInstance):
                method = self._evaluator.method(value.of, "__call__")
                if method is not None:
                    yield method

    @staticmethod
    def _shared(container: ast.expr, owner: Class) -> Iterator[Class]:
        """Yield the class of a registry if its objects share the container: `kinds = {}` in its body."""
        while isinstance(container, ast.Subscript):
            container = container.value
        if isinstance(container, ast.Attribute) and owner.bindings.get(container.attr):
            yield owner

    def _store_by_statements(self, scope: ModuleScope) -> None:
        for puts in scope.put.values():
            for container, binding in puts:
                if (container, binding.scope) in self._storing.get(binding.scope, ()):
                    continue  # callers decide
                for item in self._items(binding.value, binding.scope):
                    for shelf in self._shelves(container, binding.scope):
                        self._on[shelf][item] = None

    def _store_by_calls(self) -> None:
        """Store what calls hand over: `LOSSES.register("l1", L1)`, `LOSSES.register("l1")(L1)`."""
        for call, ran in self._analysis.running.items():
            called = call.func.func if isinstance(call.func, ast.Call) else call.func
            if not call.args or not any(
                f in self._storing for f in self._functions(called, ran.scope)
            ):
                continue
            for argument in call.args:
                for item in self._items(argument, ran.scope):
                    for shelf in self._stored_by(called, ran.scope):
                        self._on[shelf][item] = None

    def _items(self, node: ast.expr | None, scope: Scope) -> Iterator[Stored]:
        if isinstance(node, ast.Name | ast.Attribute):
            for value in self._evaluator.values(node, scope):
                if isinstance(value, Class | Function):
                    yield value

    def _shelves(self, node: ast.expr, scope: Scope) -> Iterator[Shelf]:
        """Yield what `node` may name as a shelf: a variable, a class, a module."""
        while isinstance(node, ast.Subscript):
            node = node.value
        if not isinstance(node, ast.Name | ast.Attribute):
            return
        yield from (b for b in self._bindings(node, scope) if b.kind in ASSIGNED)
        for value in self._evaluator.values(node, scope):
            if isinstance(value, Class):
                yield value
            elif isinstance(value, ProjectModule):
                module = self._analysis.scopes.get(value.path)
                if module is not None:
                    yield module

    def _bindings(self, node: ast.Name | ast.Attribute, scope: Scope) -> Iterator[ValueBinding]:
        if isinstance(node, ast.Name):
            return self._evaluator.bindings_of(node.id, scope)
        return self._evaluator.members_of(node.value, node.attr, scope)

    def _filled(self, node: ast.expr, scope: Scope) -> Iterator[Shelf]:
        """Yield the shelves that `node` names, and those that it shares with other objects of its class."""
        if not isinstance(node, ast.Name | ast.Attribute):
            return
        yield from (shelf for shelf in self._shelves(node, scope) if shelf in self._on)
        for value in self._evaluator.values(node, scope):
            if isinstance(value, ClassInstance):
                ancestors = self._evaluator.ancestors(value.of)
                yield from (class_ for class_ in ancestors if class_ in self._on)

    def made(self, node: ast.expr, scope: Scope) -> list[Stored]:
        """Return the stored classes and functions that `node` is, or of which it is an object."""
        if not self.stored and not self.looks_up:
            return []
        held: dict[Stored, None] = {}
        seen = {(node, scope)}
        nearest = [(node, scope)]
        for _ in range(MOST_STEPS):
            farther: list[Item] = []
            for inner, at in nearest:
                shelves, makers = self._one_step(inner, at)
                for shelf in shelves:
                    held.update(dict.fromkeys(self._held(shelf)))
                farther += [item for item in makers if item not in seen]
                seen.update(farther)
            nearest = farther
        return [*held]

    def _one_step(self, node: ast.expr, scope: Scope) -> tuple[list[Shelf], list[Item]]:
        """Return the shelves that an expression names, and what it is made of; many ways lead to it."""
        item = node, scope
        if item not in self._steps:
            self._steps[item] = [*self._taken_from(*item)], [*self._made_of(*item)]
        return self._steps[item]

    def _held(self, shelf: Shelf) -> Mapping[Stored, None]:
        if isinstance(shelf, ModuleScope):
            return dict.fromkeys(shelf.classes)
        return self._on.get(shelf, {})

    def _taken_from(self, node: ast.expr, scope: Scope) -> Iterator[Shelf]:
        """Yield the shelves that an expression names itself."""
        yield from self._filled(node, scope)
        match node:
            case ast.Call(func=ast.Name(id="getattr"), args=[holder, name, *_]) if not isinstance(
                name, ast.Constant
            ):
                yield from self._shelves(holder, scope)
            case ast.Call(func=ast.Name(id="globals" | "locals" | "eval")):
                yield scope.top

    def _made_of(self, node: ast.expr, scope: Scope) -> Iterator[Item]:
        """Yield the expressions that decide what `node` is, one step further."""
        match node:
            case ast.Name() | ast.Attribute():
                for binding in self._bindings(node, scope):
                    yield from self._bound(binding)
                if isinstance(node, ast.Attribute):
                    yield node.value, scope
            case ast.Call(func=func, args=args, keywords=keywords):
                yield func, scope
                for argument in (*args, *(keyword.value for keyword in keywords)):
                    if next(self._filled(argument, scope), None) is not None:
                        yield argument, scope
                for called in self._functions(func, scope):
                    yield from ((returned, called) for returned in called.returns)
            case ast.Subscript(value=value) | ast.Starred(value=value):
                yield value, scope
            case ast.NamedExpr(value=value) | ast.Await(value=value):
                yield value, scope
            case ast.IfExp(body=one, orelse=other):
                yield from ((one, scope), (other, scope))
            case (
                ast.ListComp(elt=value)
                | ast.SetComp(elt=value)
                | ast.GeneratorExp(elt=value)
                | ast.DictComp(value=value)
            ):
                yield value, scope
            case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.BoolOp(values=parts):
                yield from ((part, scope) for part in parts)
            case ast.Dict(values=parts):
                yield from ((part, scope) for part in parts)

    def _bound(self, binding: ValueBinding) -> Iterator[Item]:
        if binding.kind == "param" and isinstance(binding.scope, Function):
            yield from self._passed.get((binding.scope, binding.name), ())
        elif binding.value is not None:
            yield binding.value, binding.scope

    @cached_property
    def _passed(self) -> Mapping[Parameter, list[Item]]:
        """Expressions that calls pass for parameters."""
        passed: dict[Parameter, list[Item]] = defaultdict(list)
        for argument in chain.from_iterable(self._analysis.passed.values()):
            if argument.node is not None:
                passed[argument.to, argument.name].append((argument.node, argument.scope))
        return passed


@lru_cache(maxsize=2)
def shelves_of(analysis: Analysis) -> Shelves:
    """Return what a project stores by name, computed once for all files."""
    return Shelves(analysis)

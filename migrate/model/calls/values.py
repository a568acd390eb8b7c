"""Possible values of an expression: a function, class, instance or module of the project, or an external.

Flow is ignored: a name has all values that it is bound to anywhere. An unknown value is missing; nothing is
guessed.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from functools import cached_property
from pathlib import Path

from migrate.catalogue.launchers import DDP, DDP_DEVICES
from migrate.catalogue.words import (
    AUTOGRAD_FUNCTIONS,
    BUILTINS,
    MAKES_OWN,
    MODEL,
    MODULE_BASE,
    MODULE_METHODS,
)
from migrate.model.calls import devices
from migrate.model.calls.contents import COLLECTIONS, VIEWS, Contents
from migrate.model.calls.families import Families
from migrate.model.calls.kinds import (
    MODULES,
    MOVES_INPUTS,
    NOTHING,
    ON_SOME,
    PREPARES,
    UNKNOWN,
    Applied,
    ClassInstance,
    DeviceValue,
    External,
    OptionsValue,
    Partial,
    ProjectModule,
    Result,
    Super,
    Suspended,
    Trait,
    Value,
    Values,
    class_around,
    handed_back,
    result_of,
)
from migrate.model.calls.rank_tests import bound_by_some, chosen_by_rank, returned_by_some
from migrate.model.calls.scopes import (
    Class,
    Function,
    ModuleScope,
    Scope,
    ValueBinding,
    key_of,
    lambda_name,
)
from migrate.model.project.project import Project, file_of
from migrate.syntax.interpreter import syntax_tree

DEEPEST = 60
Key = tuple[str, int, int]
# Key of a parameter of a function, or of a field of a data class.
Parameter = tuple[Function | Class, str]
# A value that depends on more parameters than this is evaluated anew after any change.
MOST_PARAMETERS = 60
# Methods of a generator that run its function on to the next `yield`.
RESUMES = frozenset({"send", "__next__"})
# Maximum depth of chained calls; recursion has none.
MOST_CALLS = 3
ANY: Set[Parameter | None] = frozenset([None])


def concerned(needed: Set[Parameter | None], changed: Set[Parameter]) -> bool:
    """Whether values that depend on the parameters `needed` may change if `changed` change."""
    return not needed.isdisjoint(changed) or (None in needed and bool(changed))


class Evaluator(Families):
    """Evaluator of a project's expressions; each is evaluated once.

    Args:
        project: the project.
        scopes: the scopes of its modules.
    """

    def __init__(self, project: Project, scopes: dict[Path, ModuleScope]) -> None:
        self._project = project
        self._scopes = scopes
        self._dumps: dict[ast.expr, str] = {}
        self._at: dict[Path, ModuleScope | None] = {}
        self._known: dict[Key, Values] = {}
        # The parameters that cached values depend on, and those asked for just now.
        self._depends: dict[Key, Set[Parameter | None]] = {}
        self._asked: set[Parameter | None] = set()
        self._running: set[Key] = set()
        # Arguments that calls pass for parameters, and for the fields of data classes.
        self.passed: dict[Parameter, set[Value]] = defaultdict(set)
        self._assigned: dict[str, list[tuple[ast.expr, ValueBinding]]] = defaultdict(list)
        self._put: dict[str, list[tuple[ast.expr, ValueBinding]]] = defaultdict(list)
        for scope in scopes.values():
            for name, put in scope.put.items():
                self._put[name] += put
            for name, bindings in scope.assigned.items():
                self._assigned[name] += bindings
        self.contents = Contents(self)
        # Expressions of texts that the project evaluates; kept, as values are cached by their identity.
        self._parsed: dict[str, ast.expr | None] = {}
        super().__init__(class_ for scope in scopes.values() for class_ in scope.classes)

    def forget(self, changed: Set[Parameter]) -> None:
        """Discard the values that depend on the parameters `changed`, so that they are evaluated anew."""
        gone = [key for key, needed in self._depends.items() if concerned(needed, changed)]
        for key in gone:
            del self._depends[key]
            self._known.pop(key, None)

    def let_go(self) -> None:
        """Discard all cached values except the arguments of calls; they are evaluated anew on demand."""
        self._known.clear()
        self._depends.clear()

    def settle(self) -> None:
        """Forget which parameters the cached values depend on: no call passes other arguments any more."""
        self._depends.clear()
        self._asked.clear()

    def asked_for(self) -> Set[Parameter | None]:
        """Return the parameters that were asked for since the last call."""
        asked, self._asked = self._asked, set()
        return ANY if len(asked) > MOST_PARAMETERS else asked

    def ask_for(self, parameter: Parameter) -> None:
        """Record that the value that is being evaluated depends on `parameter`."""
        self._asked.add(parameter)

    def depends_on_parameters(self, node: ast.expr, scope: Scope) -> bool:
        """Whether the cached values of `node` depend on the arguments of calls."""
        return ("value", id(node), id(scope)) in self._depends

    def calls(self) -> Iterator[tuple[ast.Call, Scope]]:
        """Yield every call of the project with its scope."""
        for scope in self._scopes.values():
            waiting = scope.all_roots
            while waiting:
                region = waiting.pop()
                yield from region.calls
                waiting += region.inner

    def externals(self, node: ast.expr, scope: Scope) -> frozenset[str]:
        """Dotted names from outside of the project that `node` may be."""
        values = self.values(node, scope)
        return frozenset(value.name for value in values if isinstance(value, External))

    def values(self, node: ast.expr | None, scope: Scope) -> Values:
        """Return the possible values of `node`, evaluated in `scope`."""
        if node is None:
            return NOTHING
        if isinstance(node, ast.Constant):
            return devices.named(node, scope)
        key = ("value", id(node), id(scope))
        known = self._known.get(key)
        if known is None:
            return self._once(key, lambda: self._evaluate(node, scope))
        if key in self._depends:
            self._asked |= self._depends[key]
        return known

    def elements(self, node: ast.expr | None, scope: Scope) -> Values:
        """Return the possible elements of the container `node`; for a dictionary, its values."""
        if node is None or isinstance(node, ast.Constant):
            return NOTHING
        return self._once(("elements", id(node), id(scope)), lambda: self._elements(node, scope))

    def _once(self, key: Key, evaluate: Callable[[], Values]) -> Values:
        """Return the cached values of `key`, or `evaluate` them; a value that depends on itself is empty."""
        known = self._known.get(key)
        if known is not None:
            if key in self._depends:
                self._asked |= self._depends[key]
            return known
        if key in self._running or len(self._running) > DEEPEST:
            return NOTHING
        self._running.add(key)
        around, self._asked = self._asked, set()
        values = evaluate()
        asked, self._asked = self._asked, around
        self._running.discard(key)
        self._known[key] = values
        if asked:
            self._depends[key] = ANY if len(asked) > MOST_PARAMETERS else asked
            around |= asked
        return values

    def _evaluate(self, node: ast.expr, scope: Scope) -> Values:
        match node:
            case ast.Name(id=name):
                bindings = self._lookup(name, scope)
                return self._union(self._bound(b) for b in bindings) | self._bound_by_some(bindings)
            case ast.Attribute(value=receiver, attr=name):
                receivers = self.values(receiver, scope)
                return self._union(self.attribute(value, name) for value in receivers)
            case ast.Call():
                return self._result(node, scope)
            case ast.Subscript(value=container, slice=ast.Constant(value=str(key))):
                return self.at_key(container, key, scope)
            case ast.Subscript(value=container, slice=ast.Constant(value=0)) if (
                device := devices.type_before_colon(container)
            ) is not None:
                return self.values(device, scope)
            case ast.Subscript(value=container, slice=key):
                constant = key_of(key)
                put = self.at_key(container, constant, scope) if constant is not None else NOTHING
                return self.elements(container, scope) | put
            case ast.BinOp() | ast.JoinedStr():
                return devices.spelled(node, scope, self)
            case ast.IfExp(body=one, orelse=other):
                on_some = frozenset([ON_SOME]) if chosen_by_rank(node, scope, self) else NOTHING
                return self.values(one, scope) | self.values(other, scope) | on_some
            case ast.BoolOp(values=parts):
                return self._union(self.values(part, scope) for part in parts)
            case (
                ast.NamedExpr(value=value)
                | ast.Await(value=value)
                | ast.YieldFrom(value=value)
                | ast.Starred(value=value)
            ):
                return self.values(value, scope)
            case ast.Lambda():
                return self._union(self._bound(b) for b in scope.bindings[lambda_name(node)])
        return NOTHING

    def _bound_by_some(self, bindings: Iterable[ValueBinding]) -> Values:
        return frozenset([ON_SOME]) if bound_by_some(bindings, self) else NOTHING

    def attribute(self, value: Value, name: str) -> Values:
        """Return the possible values of `value.name`: a function for a method, the result for a property."""
        values = self._attribute(value, name)
        if name in self._assigned and not isinstance(value, External | DeviceValue | Trait):
            values |= self._once(
                (f"assigned {name}", hash(value), 0), lambda: self._put_on(value, name)
            )
        return values

    def is_autograd_function(self, of: Class) -> bool:
        """Whether a class derives from `torch.autograd.Function`."""
        return not AUTOGRAD_FUNCTIONS.isdisjoint(self.external_bases(of))

    def _put_on(self, value: Value, name: str) -> Values:
        """Return the devices assigned to `value.name` anywhere in the project.

        A function assigned to an object replaces a method for that object only, so it is not followed.
        """
        values = self._union(
            self._bound(binding)
            for receiver, binding in self._assigned[name]
            if any(_same(value, other) for other in self.values(receiver, binding.scope))
        )
        return frozenset(value for value in values if isinstance(value, DeviceValue | OptionsValue))

    @cached_property
    def options_set(self) -> dict[Path, frozenset[str]]:
        """Attributes of command-line options that the project assigns, by the file that parses them."""
        options: dict[Path, set[str]] = defaultdict(set)
        for name, assigned in self._assigned.items():
            for receiver, binding in assigned:
                for value in self.values(receiver, binding.scope):
                    if isinstance(value, OptionsValue):
                        options[value.path].add(name)
        return {path: frozenset(names) for path, names in options.items()}

    def at_key(self, container: ast.expr, key: str, scope: Scope) -> Values:
        """Return the possible values of `container[key]`."""
        return self._once(
            (f"key {key}", id(container), id(scope)), lambda: self._at_key(container, key, scope)
        )

    def _at_key(self, container: ast.expr, key: str, scope: Scope) -> Values:
        values = devices.of_environment(container, key, scope, self)
        for node, at in self._containers(container, scope):
            is_dict = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "dict"
            if not isinstance(node, ast.Dict) and not is_dict:
                values |= self.elements(node, at)
        values |= self._union(
            self.values(node, at) for node, at in self.contents.at_key(container, key, scope)
        )
        return values | self._union(self._bound(b) for _, b in self._set_at(container, key))

    def items_at(
        self, container: ast.expr, key: str, scope: Scope
    ) -> Iterator[tuple[ast.expr, Scope]]:
        """Yield the expressions whose value `container[key]` may be, of the same container or its file."""
        yield from self.contents.at_key(container, key, scope)
        for receiver, binding in self._set_at(container, key):
            if binding.kind != "value" or binding.value is None:
                continue
            near = binding.scope.top is scope.top
            if near or self._is_one_variable(container, scope, receiver, binding.scope):
                yield binding.value, binding.scope

    def _is_one_variable(
        self, node: ast.expr, scope: Scope, other: ast.expr, elsewhere: Scope
    ) -> bool:
        """Whether two expressions of the same text, in two files, may be one variable, or one attribute.

        A parameter may be any variable.
        """
        match node, other:
            case ast.Name(id=name), ast.Name():
                here, there = ({*self.bindings_of(name, at)} for at in (scope, elsewhere))
                return bool(here & there) or any(b.kind == "param" for b in here | there)
            case ast.Attribute(value=holder), ast.Attribute(value=another):
                if self.values(holder, scope) - {UNKNOWN} and self.values(another, elsewhere):
                    return self._is_same_container(node, scope, other, elsewhere)
                return self._is_one_variable(holder, scope, another, elsewhere)
        return False

    def _set_at(self, container: ast.expr, key: str) -> Iterator[tuple[ast.expr, ValueBinding]]:
        """Yield the assignments `container[key] = value` with the container, by its text."""
        if key in self._assigned:
            as_container = self._dumped(container)
            for receiver, binding in self._assigned[key]:
                if self._dumped(receiver) == as_container:
                    yield receiver, binding

    def _dumped(self, node: ast.expr) -> str:
        if node not in self._dumps:
            self._dumps[node] = ast.dump(node)
        return self._dumps[node]

    def _containers(self, node: ast.expr, scope: Scope) -> Iterator[tuple[ast.expr, Scope]]:
        """Yield the expressions that `node` stands for."""
        if not isinstance(node, ast.Name | ast.Attribute):
            yield node, scope
            return
        for binding in self.origins(node, scope):
            if binding.value is not None:
                yield binding.value, binding.scope

    def _attribute(self, value: Value, name: str) -> Values:
        match value:
            case DeviceValue():
                return frozenset([value]) if name == "type" else NOTHING
            case OptionsValue(path):
                return devices.of_option(path, name, self)
            case ClassInstance(of, exact):
                return self._member(of, name, exact)
            case Class():
                member = self._member(value, name, exact=True)
                applied = name == "apply" and not member and self.is_autograd_function(value)
                return frozenset([Applied(value)]) if applied else member
            case Super(of):
                values = (
                    self._member(base, name) for base in self.bases(of) if isinstance(base, Class)
                )
                return self._union(values)
            case ProjectModule(path):
                return self._exported(path, name)
            case Suspended(of):
                resumed = Partial(of, len(of.parameters))
                return frozenset([resumed]) if name in RESUMES else NOTHING
            case External(dotted):
                return frozenset([External(f"{dotted}.{name}")])
            case Result(dotted) if value not in MODULES and dotted.count("()") < MOST_CALLS:
                return frozenset([External(f"{dotted}().{name}")])
        return NOTHING

    def _elements(self, node: ast.expr | None, scope: Scope) -> Values:
        match node:
            case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
                return self._union(self._flat(part, scope) for part in parts)
            case ast.Dict(values=parts):
                return self._union(self._flat(part, scope) for part in parts)
            case ast.ListComp(elt=part) | ast.SetComp(elt=part) | ast.GeneratorExp(elt=part):
                return self._flat(part, scope)
            case ast.DictComp(value=part):
                return self._flat(part, scope)
            case ast.IfExp(body=one, orelse=other) | ast.BinOp(left=one, right=other):
                return self.elements(one, scope) | self.elements(other, scope)
            case ast.Subscript(value=container, slice=ast.Constant(value=str(key))) if (
                items := list(self.items_at(container, key, scope))
            ):
                return self._union(self.elements(item, at) for item, at in items)
            case ast.Subscript(value=container):
                return self.elements(container, scope)
            case ast.Call():
                return self._elements_of_result(node, scope)
            case ast.Name() | ast.Attribute():
                origins = self.origins(node, scope)
                held = self._union(self.elements(b.value, b.scope) for b in origins)
                return held | self._put_into(node, scope) | self._elements_passed(node, scope)
        return NOTHING

    def _elements_passed(self, node: ast.expr, scope: Scope) -> Values:
        """Return the instances of project classes in the containers that calls pass for a parameter."""
        if not isinstance(node, ast.Name):
            return NOTHING
        values: set[Value] = set()
        for binding in self._lookup(node.id, scope):
            containers = self.contents.given(binding)
            values |= self._union(self.elements(passed, at) for passed, at in containers)
        return frozenset(value for value in values if isinstance(value, ClassInstance))

    def _put_into(self, container: ast.Name | ast.Attribute, scope: Scope) -> Values:
        """Return the instances of project classes that are put into a container: `x[k] = Meter()`."""
        name = container.attr if isinstance(container, ast.Attribute) else container.id
        instances: set[Value] = set()
        for other, binding in self._put.get(name, ()):
            if self._is_same_container(container, scope, other, binding.scope):
                if binding.kind == "value" and binding.value is not None:
                    values = self._flat(binding.value, binding.scope)
                else:
                    values = self._bound(binding)
                instances |= {value for value in values if isinstance(value, ClassInstance)}
        return frozenset(instances)

    def _is_same_container(
        self, node: ast.expr, scope: Scope, other: ast.expr, elsewhere: Scope
    ) -> bool:
        match node, other:
            case ast.Name(id=name), ast.Name():
                return self._lookup(name, scope) is self._lookup(name, elsewhere)
            case ast.Attribute(value=holder), ast.Attribute(value=another):
                held = self.values(another, elsewhere)
                return any(_same(a, b) for a in self.values(holder, scope) for b in held)
        return False

    def _flat(self, part: ast.expr, scope: Scope) -> Values:
        if isinstance(part, ast.Starred):
            return self.elements(part.value, scope)
        if isinstance(part, ast.List | ast.Tuple | ast.Set | ast.Dict):
            return self.elements(part, scope)
        return self.values(part, scope)

    def _elements_of_result(self, call: ast.Call, scope: Scope) -> Values:
        function = call.func
        if isinstance(function, ast.Attribute) and function.attr in VIEWS | {"get"}:
            return self.elements(function.value, scope)
        if isinstance(function, ast.Attribute) and function.attr == "parse_known_args":
            return frozenset([OptionsValue(scope.module.path)])
        last = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        collate = next((k.value for k in call.keywords if k.arg == "collate_fn"), None)
        if collate is not None and (batches := self._made_by(collate, scope)):
            return batches
        if last == "defaultdict" and call.args:
            return self._made_by(call.args[0], scope)
        if last in COLLECTIONS:
            named = (self._flat(keyword.value, scope) for keyword in call.keywords)
            return self._union(self.elements(arg, scope) for arg in call.args) | self._union(named)
        called = [f for f in self.values(function, scope) if isinstance(f, Function)]
        return self._union(map(self._elements_given, called))

    def _elements_given(self, function: Function) -> Values:
        """Return the elements of what `function` returns, or those that it yields."""
        if not function.yields and not function.delegates:
            return self._union(self.elements(returned, function) for returned in function.returns)
        yielded = self._union(self._flat(value, function) for value in function.yields)
        return yielded | self._union(self.elements(of, function) for of in function.delegates)

    def _made_by(self, factory: ast.expr, scope: Scope) -> Values:
        """Return the instances of project classes that `factory()` makes."""
        instances: set[Value] = set()
        for callee in self.values(factory, scope):
            if isinstance(callee, Class):
                instances.add(ClassInstance(callee))
                continue
            if isinstance(callee, ClassInstance):
                callee = self.method(callee.of, "__call__") or callee
            if isinstance(callee, Function):
                results = self._union(self.values(returned, callee) for returned in callee.returns)
                instances |= {result for result in results if isinstance(result, ClassInstance)}
        return frozenset(instances)

    def properties(self, node: ast.Attribute, scope: Scope) -> Iterator[Function]:
        """Yield the properties of project classes that reading the attribute `node` runs."""
        for value in self.values(node.value, scope):
            method = self.method(value.of, node.attr) if isinstance(value, ClassInstance) else None
            if method is not None and method.is_a("property", "cached_property"):
                yield method

    def origins(self, node: ast.Name | ast.Attribute, scope: Scope) -> Iterator[ValueBinding]:
        """Yield the assignments `name = value` that `node` may stand for."""
        if isinstance(node, ast.Name):
            for binding in self._lookup(node.id, scope):
                if binding.kind == "from":
                    yield from self._origins_elsewhere(binding)
                elif binding.kind == "value":
                    yield binding
            return
        for value in self.values(node.value, scope):
            if isinstance(value, ClassInstance):
                for related in self.relatives(value.of, value.exact):
                    assigned = (
                        *related.attributes[node.attr],
                        *related.bindings.get(node.attr, ()),
                    )
                    yield from (b for b in assigned if b.kind == "value")
            elif isinstance(value, ProjectModule) and (module := self._scope_at(value.path)):
                yield from (b for b in module.bindings.get(node.attr, ()) if b.kind == "value")

    def parameter(self, function: Function, name: str) -> Values:
        """Return the possible values of the parameter `name` of `function`."""
        return self._parameter(function, name)

    def bindings_of(self, name: str, scope: Scope) -> Iterator[ValueBinding]:
        """Yield the bindings of `name` as seen from `scope`; for an import, the bindings in its file."""
        for binding in self._lookup(name, scope):
            yield from self._at_home(binding)

    def members_of(self, receiver: ast.expr, name: str, scope: Scope) -> Iterator[ValueBinding]:
        """Yield the bindings of the attribute `name` of `receiver`, anywhere in the project."""
        values = self.values(receiver, scope)
        for value in values:
            if isinstance(value, ClassInstance | Class):
                of, exact = (
                    (value.of, value.exact) if isinstance(value, ClassInstance) else (value, True)
                )
                for related in self.relatives(of, exact):
                    yield from related.attributes.get(name, ())
                    yield from related.bindings.get(name, ())
            elif isinstance(value, ProjectModule) and (module := self._scope_at(value.path)):
                for binding in module.bindings.get(name, ()):
                    yield from self._at_home(binding)
        text = self._dumped(receiver)
        for other, binding in self._assigned.get(name, ()):
            near = binding.scope.top is scope.top and self._dumped(other) == text
            if near or any(_same(a, b) for a in values for b in self.values(other, binding.scope)):
                yield binding

    def _at_home(self, binding: ValueBinding, depth: int = 0) -> Iterator[ValueBinding]:
        if binding.kind != "from" or depth > DEEPEST:
            yield binding
            return
        importer = binding.scope.module.path
        place = self._project.find(importer, binding.module, binding.level, binding.name)
        module = self._scope_at(place) if place is not None else None
        elsewhere = module.bindings.get(binding.name, ()) if module is not None else ()
        for other in elsewhere:
            yield from self._at_home(other, depth + 1)
        if not elsewhere:
            yield binding

    def iterated(self, node: ast.expr, scope: Scope) -> Iterator[ast.expr]:
        """Yield the iterables of the loops that bind the name `node`: both of `zip(one, other)`."""
        if isinstance(node, ast.Name):
            for binding in self._lookup(node.id, scope):
                match binding.value:
                    case ast.Call(func=ast.Name(id="zip" | "enumerate"), args=args):
                        yield from args if binding.kind == "element" else ()
                    case ast.expr() as value if binding.kind == "element":
                        yield value

    def _origins_elsewhere(self, imported: ValueBinding, depth: int = 0) -> Iterator[ValueBinding]:
        """Yield the assignments to an imported name in its own file."""
        importer = imported.scope.module.path
        place = self._project.find(importer, imported.module, imported.level, imported.name)
        module = self._scope_at(place) if place is not None else None
        for binding in module.bindings.get(imported.name, ()) if module is not None else ():
            if binding.kind == "value":
                yield binding
            elif binding.kind == "from" and depth < DEEPEST:
                yield from self._origins_elsewhere(binding, depth + 1)

    def _lookup(self, name: str, scope: Scope) -> list[ValueBinding]:
        """Return the bindings of `name` as seen from `scope`."""
        around: Scope | None = scope
        if isinstance(scope, Function) and name in scope.elsewhere:
            around = scope.elsewhere[name]
        while around is not None:
            visible = around is scope or not isinstance(around, Class)
            if visible and (bindings := around.bindings.get(name)):
                return bindings
            around = around.parent
        return self._from_stars(name, scope.top)

    def _from_stars(
        self, name: str, top: ModuleScope, seen: frozenset[Path] = frozenset()
    ) -> list[ValueBinding]:
        external: list[ValueBinding] = []
        for star in top.stars:
            place = self._project.find(top.module.path, star.module, star.level)
            module = self._scope_at(place) if place is not None else None
            if module is None:
                external.append(ValueBinding("from", top, module=star.module, name=name))
            elif module.module.path not in seen:
                seen |= {module.module.path}
                bindings = module.bindings.get(name) or self._from_stars(name, module, seen)
                if bindings:
                    return bindings
        return external

    def from_outside(self, top: ModuleScope) -> Iterator[tuple[str, str]]:
        """Yield the names that star imports bring from outside of the project, with their meanings."""
        used = {node.id for node in top.module.nodes if isinstance(node, ast.Name)}
        for name in sorted(used - BUILTINS - top.bindings.keys()):
            bindings = self._from_stars(name, top)
            alone = len(bindings) == 1  # nothing else of the file can bind the name
            if not alone and not all(
                _is_of_torch(b) or b in b.scope.bindings.get(name, ()) for b in bindings
            ):
                continue  # the names in a star import of another library are unknown
            values = self._union(self._bound(b) for b in bindings)
            names = {value.name for value in values if isinstance(value, External)}
            if len(values) == len(names) == 1 and not name.startswith("_"):
                yield name, names.pop()

    def _bound(self, binding: ValueBinding) -> Values:
        match binding.kind:
            case "scope":
                assert isinstance(binding.scope, Function | Class)
                return frozenset([binding.scope])
            case "value":
                return self.values(binding.value, binding.scope)
            case "element":
                return self.elements(binding.value, binding.scope)
            case "item":
                key = (f"item {binding.index}", id(binding.value), id(binding.scope))
                return self._once(key, lambda: self._item(binding))
            case "param":
                assert isinstance(binding.scope, Function)
                return self._parameter(binding.scope, binding.name)
            case _:
                return self.imported(binding)

    def imported(self, binding: ValueBinding) -> Values:
        """Return the module, or the name of a module, that an import binds."""
        importer = binding.scope.module.path
        place = self._project.find(importer, binding.module, binding.level, binding.name)
        dotted = ".".join(filter(None, (binding.module, binding.name)))
        if place is None:
            return NOTHING if binding.level else frozenset([External(dotted)])
        if not binding.name:
            return frozenset([ProjectModule(place)])
        values = self._exported(place, binding.name)
        if not values and not binding.level and file_of(place) is None:
            # An installed package comes before a folder of the same name without `__init__.py`.
            return frozenset([External(dotted)])
        return values

    def _exported(self, place: Path, name: str) -> Values:
        """Return the possible values of `name` in the module or package at `place`."""
        module = self._scope_at(place)
        if module is not None:
            bindings = module.bindings.get(name) or self._from_stars(name, module)
            key = (f"export {name}", id(module), 0)  # asked twice by `from . import x` in a package
            values = self._once(key, lambda: self._union(self._bound(b) for b in bindings))
            if values:
                return values
        below = self._project.below(place, name)
        return frozenset([ProjectModule(below)]) if below is not None else NOTHING

    def _scope_at(self, place: Path) -> ModuleScope | None:
        if place not in self._at:
            file = file_of(place)
            self._at[place] = self._scopes.get(file) if file is not None else None
        return self._at[place]

    def _parameter(self, function: Function, name: str) -> Values:
        if function.owner is not None and function.is_bound and function.parameters[:1] == [name]:
            own = (
                function.owner
                if function.is_a("classmethod")
                else ClassInstance(function.owner, exact=False)
            )
            return frozenset([own])
        self._asked.add((function, name))
        values = frozenset(self.passed.get((function, name), ()))
        outside = function.parent or function
        if self._is_given_options(function, name, outside):
            values |= {OptionsValue(function.module.path)}
        default, annotations = function.declared.get(name, (None, ()))
        values |= devices.by_default(self.values(default, outside))
        for annotation in annotations:
            values |= self._annotated(annotation, outside)
        return values

    def _is_given_options(self, function: Function, name: str, outside: Scope) -> bool:
        """Whether a decorator passes `name` the configuration: `@hydra.main(…)`."""
        if function.parameters[:1] != [name]:
            return False
        called = (
            decorator.func if isinstance(decorator, ast.Call) else decorator
            for decorator in function.decorators
        )
        return any(
            External("hydra.main") in self.values(decorator, outside) for decorator in called
        )

    def _annotated(self, annotation: ast.expr, scope: Scope) -> Values:
        """Return the instances of the type `annotation`; for `X | None` and `Optional[X]`, those of X."""
        match annotation:
            case ast.Name() | ast.Attribute():
                values: set[Value] = set()
                for value in self.values(annotation, scope):
                    if isinstance(value, Class):
                        values.add(ClassInstance(value, exact=False))
                    elif isinstance(value, External):
                        values |= result_of(value)
                return frozenset(values)
            case ast.BinOp(left=one, right=other):
                return self._annotated(one, scope) | self._annotated(other, scope)
            case ast.Subscript(value=ast.Name(id="Optional" | "Union"), slice=inner):
                parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
                return self._union(self._annotated(part, scope) for part in parts)
        return NOTHING

    def _item(self, binding: ValueBinding) -> Values:
        """Return element number `index` of the value, as `a, b = value` unpacks it."""
        value, scope, index = binding.value, binding.scope, binding.index
        if isinstance(value, ast.Tuple | ast.List):
            return self.values(value.elts[index], scope) if index < len(value.elts) else NOTHING
        if not isinstance(value, ast.Call):
            return self.elements(value, scope)
        values: set[Value] = set()
        if index == 0 and (device := devices.type_before_colon(value)) is not None:
            return self.values(device, scope)
        if getattr(value.func, "attr", "") == "parse_known_args" and index == 0:
            return frozenset([OptionsValue(scope.module.path)])
        for called in self.values(value.func, scope):
            if isinstance(called, Function):
                for returned in called.returns:
                    values |= self._bound(ValueBinding("item", called, returned, index=index))
            elif isinstance(called, External):
                values |= result_of(called)
                if index < len(value.args):  # model, optimizer = amp.initialize(model, optimizer)
                    values |= handed_back(called, self.values(value.args[index], scope))
                    values |= self._prepared(called, value.args[index], scope)
        return frozenset(values)

    def _result(self, call: ast.Call, scope: Scope) -> Values:
        """Return the result of a call; external wrappers return what they wrap, too."""
        if isinstance(call.func, ast.Name):
            if call.func.id == "super" and (own := class_around(scope)):
                return frozenset([Super(own)])
            if call.func.id == "getattr" and len(call.args) >= 2:
                return self._getattr(call, scope)
            if call.func.id == "next" and call.args:
                return self.elements(call.args[0], scope)
            if call.func.id == "__import__" and not self._lookup("__import__", scope):
                places = self._project.imported_by_name(scope.module.path, call)
                return frozenset(map(ProjectModule, places)) or frozenset(_named_module(call))
            if call.func.id == "eval" and call.args:
                return self._union(self.values(e, scope) for e in self._texts(call.args[0], scope))
        values: set[Value] = set(devices.of_call(call, scope, self))
        if isinstance(call.func, ast.Attribute):
            if call.func.attr in MODULE_METHODS:
                values.update(self._same_module(call.func, scope))
            values.update(self._made_by_method(call.func, scope))
            if call.func.attr == "get" and call.args:
                values.update(self._looked_up(call.func.value, call.args, scope))
        for called in self.values(call.func, scope):
            match called:
                case Class():
                    values.add(ClassInstance(called))
                case Function():
                    values |= self._union(
                        self.values(returned, called) for returned in called.returns
                    )
                    if returned_by_some(called, self):
                        values.add(ON_SOME)
                    if called.yields:
                        values.add(Suspended(called))
                case Partial(of):
                    values |= self._union(self.values(returned, of) for returned in of.returns)
                case Applied(of):
                    if method := self.method(of, "forward"):
                        values |= self._union(self.values(r, method) for r in method.returns)
                case ClassInstance(of):
                    if method := self.method(of, "__call__"):
                        values |= self._union(self.values(r, method) for r in method.returns)
                case External():
                    values |= result_of(called)
                    if called.name == "importlib.import_module":
                        importer = scope.module.path
                        places = self._project.imported_by_name(importer, call)
                        values.update(map(ProjectModule, places))
                        values.update(() if places else _named_module(call))
                    if called.name in DDP and any(
                        _names_devices(keyword) for keyword in call.keywords
                    ):
                        values.add(MOVES_INPUTS)
                    if call.args:
                        first = self.values(call.args[0], scope)
                        back = handed_back(called, first)
                        if _binds(called):
                            back = _bound_to(back | _externals(first), len(call.args) - 1)
                        values |= back
                        if len(call.args) == 1:
                            values |= self._prepared(called, call.args[0], scope)
        return frozenset(values)

    def _looked_up(self, container: ast.expr, args: Sequence[ast.expr], scope: Scope) -> Values:
        """Return the functions, classes and instances that `container.get(key, default)` may return."""
        constant = key_of(args[0])
        held = self.elements(container, scope) if constant is None else NOTHING
        if constant is not None:
            held = self.at_key(container, constant, scope)
        return frozenset(
            value
            for value in held | self._union(self.values(arg, scope) for arg in args[1:])
            if isinstance(value, Function | Class | ClassInstance)
        )

    def _texts(self, node: ast.expr, scope: Scope) -> Iterator[ast.expr]:
        """Yield the expressions of the texts that `node` may be: literals, and defaults of options."""
        texts: list[ast.expr | None] = [node]
        if isinstance(node, ast.Name | ast.Attribute):
            texts += [binding.value for binding in self.origins(node, scope)]
        if isinstance(node, ast.Attribute) and self._may_be_options(node.value, scope):
            texts += [default for default, _ in devices.options_of(self).get(node.attr, ())]
        for text in texts:
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                if text.value not in self._parsed:
                    self._parsed[text.value] = _expression(text.value)
                if (expression := self._parsed[text.value]) is not None:
                    yield expression

    def _may_be_options(self, node: ast.expr, scope: Scope) -> bool:
        """Whether `node` holds options of a command line, or nothing is known of it."""
        values = self.values(node, scope)
        return not values or any(isinstance(value, OptionsValue) for value in values)

    def _prepared(self, called: External, node: ast.expr, scope: Scope) -> Values:
        """Return the module that moves its inputs, if Accelerate prepares a model here."""
        is_prepared = called.name in PREPARES and self.is_prepared_model(node, scope)
        return frozenset([MOVES_INPUTS]) if is_prepared else NOTHING

    def is_prepared_model(self, node: ast.expr, scope: Scope) -> bool:
        """Whether the argument that Accelerate prepares is a model; by its name if nothing else is known."""
        values = self.values(node, scope) - {UNKNOWN}
        if not values:
            spelled = getattr(node, "attr", getattr(node, "id", ""))
            return MODEL.fullmatch(spelled) is not None
        return any(
            value in MODULES
            or (
                isinstance(value, ClassInstance)
                and any(MODULE_BASE.match(base) for base in self.external_bases(value.of))
            )
            for value in values
        )

    def _same_module(self, method: ast.Attribute, scope: Scope) -> Iterator[Value]:
        """Yield the modules that `module.to(…)` returns."""
        for value in self.values(method.value, scope):
            if value in MODULES or (
                isinstance(value, ClassInstance)
                and self.method(value.of, method.attr) is None
                and any(MODULE_BASE.match(base) for base in self.external_bases(value.of))
            ):
                yield value

    def _made_by_method(self, method: ast.Attribute, scope: Scope) -> Iterator[ClassInstance]:
        """Yield the instance of `Cls` that `Cls.from_pretrained(…)` makes by a method of a base class."""
        for value in self.values(method.value, scope):
            if not isinstance(value, Class):
                continue
            function = self.method(value, method.attr)
            if function is None:
                if MAKES_OWN.fullmatch(method.attr) and self.external_bases(value):
                    yield ClassInstance(value)
            elif (
                function.is_a("classmethod")
                and function.owner is not None
                and function.owner is not value
            ):
                results = self._union(
                    self.values(returned, function) for returned in function.returns
                )
                if any(
                    isinstance(result, ClassInstance) and result.of is function.owner
                    for result in results
                ):
                    yield ClassInstance(value)

    def _getattr(self, call: ast.Call, scope: Scope) -> Values:
        name = call.args[1]
        if not (isinstance(name, ast.Constant) and isinstance(name.value, str)):
            return NOTHING
        values = self.values(call.args[0], scope)
        values = self._union(self.attribute(value, name.value) for value in values)
        return values | self._union(self.values(default, scope) for default in call.args[2:])

    def _member(self, of: Class, name: str, exact: bool = True) -> Values:
        values: set[Value] = set()
        if method := self.method(of, name):
            values |= self._of_method(method)
        for related in self.relatives(of, exact):
            bindings = related.bindings.get(name, ())
            methods = (
                b.scope for b in bindings if isinstance(b.scope, Function) and b.kind == "scope"
            )
            if related is not of and related not in self.ancestors(of):
                values |= self._union(self._of_method(method) for method in methods)
            if name in related.fields:
                self._asked.add((related, name))
                values |= self.passed.get((related, name), set())
            assigned = [
                *related.attributes.get(name, ()),
                *(b for b in bindings if b.kind != "scope"),
            ]
            values |= self._union(self._bound(binding) for binding in assigned)
            values |= self._bound_by_some(assigned)
        return frozenset(values)

    def _of_method(self, method: Function) -> Values:
        if method.is_a("property", "cached_property"):
            return self._union(self.values(returned, method) for returned in method.returns)
        return frozenset([method])

    @staticmethod
    def _union(sets: Iterable[Values]) -> Values:
        return frozenset().union(*sets)


def _expression(text: str) -> ast.expr | None:
    """Return the one expression that a text is; None for other code."""
    try:
        body = syntax_tree(text.strip()).body
    except (SyntaxError, ValueError):
        return None
    return body[0].value if len(body) == 1 and isinstance(body[0], ast.Expr) else None


def _is_of_torch(binding: ValueBinding) -> bool:
    return binding.module.split(".")[0] in ("torch", "torch_xla")


def _same(value: Value, other: Value) -> bool:
    """Whether two values may be the same object: of one class, or options of the command line."""
    if isinstance(value, OptionsValue) and isinstance(other, OptionsValue):
        return True
    if isinstance(value, ClassInstance) and isinstance(other, ClassInstance):
        return value.of is other.of
    return value == other and isinstance(value, ProjectModule | Class)


def _named_module(call: ast.Call) -> Iterator[External]:
    """Yield the module from outside of the project that `import_module` or `__import__` gets by its name."""
    match call.args:
        case [ast.Constant(value=str(name)), *_] if name and not name.startswith("."):
            whole = not isinstance(call.func, ast.Name)  # `__import__("a.b")` is `a`
            yield External(name if whole else name.partition(".")[0])


def _names_devices(keyword: ast.keyword) -> bool:
    """Whether an argument of DistributedDataParallel names a device; for a GPU script it is the GPU."""
    nothing = isinstance(keyword.value, ast.Constant) and keyword.value.value is None
    return keyword.arg in DDP_DEVICES and not nothing


def _binds(called: External) -> bool:
    return called.name in ("functools.partial", "functools.partialmethod")


def _externals(values: Values) -> Values:
    return frozenset(value for value in values if isinstance(value, External))


def _bound_to(values: Values, count: int) -> Values:
    """Return the functions among `values` with their first `count` arguments bound.

    A library's function stays what it is as long as its positional arguments stand where they stood.
    """
    callables = (Partial(v, count) if isinstance(v, Function) and count else v for v in values)
    return frozenset(v for v in callables if not count or not isinstance(v, External))

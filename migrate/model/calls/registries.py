"""Objects whose class is chosen by name while the script runs: loops that train through one, calls of one.

`model = build_model(opt)` of a registry, `construct_class_by_name(**options)` and hydra's `instantiate` are
examples: the source does not show what `model.optimize_parameters()` runs. The loop has to be decided by hand
if a project class that is made by name has a training method of that name. If a settings file has the class
name, any class of the project counts. The loop also has to be decided by hand if it does the other half of
the training itself, or if the method's name says that it trains. An object of which the source shows nothing
at all may be of any class of the project with such a method, if that takes the arguments.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from migrate.catalogue.words import HIDDEN_TRAINING, NO_GRADIENTS
from migrate.model.calls.analysis import Analysis
from migrate.model.calls.effect import BOTH, Effect
from migrate.model.calls.kinds import UNKNOWN, ClassInstance
from migrate.model.calls.scopes import Class, Function, ModuleScope, Region, Scope
from migrate.model.calls.shelves import Shelves, Stored, shelves_of

REGISTERS = re.compile(r"^register|_register$|^registered$", re.IGNORECASE)
DISPLAYS = ast.Dict | ast.List | ast.Set | ast.DictComp | ast.ListComp | ast.SetComp
# Calls that make a container of Python, whose methods train nothing.
CONTAINERS = frozenset({"dict", "defaultdict", "OrderedDict", "Counter", "set", "list", "deque"})
# Functions that make an object of a class named by a string.
MAKES_BY_NAME = re.compile(
    r"by_name$|^instantiate|^build_from|from_cfg$|^import_(class|object|string)|^load_obj|^locate$"
)
# Possible names of the method if the loop itself does the other half: `loss.accumulate_gradients()`.
HALF = re.compile("backward|grad|loss|optimi|step|train")
# Methods that a call of an object runs.
CALLED = ("forward", "__call__")
LEAST_LETTERS = 4  # that the names of an object and of its class share
# Bindings of a name that may stand for any class: assignment, loop.
VARIABLE = frozenset({"value", "item", "element"})
# A class named only by such a string: 'training.loss.StyleGAN2Loss'.
DOTTED = re.compile(r"[A-Za-z_][\w]*(?:\.[A-Za-z_]\w*)+")


@dataclass(frozen=True)
class Hidden:
    """Loop that may train.

    Args:
        line: the line of the loop.
        call: the call that may train, as written.
        classes: the names of the classes whose method it may run.
        by_method: whether only the method's name leads to these classes.
    """

    line: int
    call: str
    classes: tuple[str, ...]
    by_method: bool = False


@dataclass(frozen=True)
class _Open:
    """Call of a method known only by name, with the effects of methods of that name."""

    call: ast.Call
    effect: Effect
    classes: tuple[str, ...]
    by_method: bool = False


@dataclass
class Registries:
    """Training methods of classes that are made by name.

    Args:
        analysis: of the project.
    """

    analysis: Analysis
    _shelves: Shelves = field(init=False)
    _methods: dict[str, list[tuple[Class, Effect]]] = field(init=False)
    _called: dict[str, list[tuple[str, Function]]] = field(init=False)
    _found: set[Region] = field(default_factory=set)
    _may_run: dict[ModuleScope, Mapping[ast.Call, list[Function]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        named = self._named()
        self._shelves = shelves_of(self.analysis)
        self._methods = defaultdict(list)
        self._called = defaultdict(list)
        for scope in self.analysis.scopes.values():
            for class_ in scope.classes:
                if class_.name not in named and not is_stored(class_, self.analysis):
                    continue
                for name, effect in self._training(class_):
                    self._methods[name].append((class_, effect))
                for name, method in self._all_methods(class_):
                    self._called[name].append((class_.name, method))

    def loops(self, scope: ModuleScope) -> Iterator[Hidden]:
        """Yield the loops of a module that train only through such methods."""
        for root in scope.all_roots:
            for region in reversed(list(self.analysis.regions(root))):  # inner loops first
                hidden = self._loop(region)
                if hidden is not None:
                    self._found.add(region)
                    yield hidden

    def _loop(self, region: Region) -> Hidden | None:
        if region.loop is None or region in self.analysis.step_loops | self.analysis.captured:
            return None
        calls = list(self._open_calls(region))
        effect = self._plain(region)
        for open_call in calls:
            effect |= open_call.effect
        if not calls or effect != BOTH:
            return None
        name = ast.unparse(calls[0].call.func)
        classes = {
            class_: None
            for open_call in calls
            if ast.unparse(open_call.call.func) == name
            for class_ in open_call.classes
        }
        by_method = all(open_call.by_method for open_call in calls)
        return Hidden(region.loop.lineno, name, tuple(classes), by_method)

    def marked(self, region: Region) -> Iterator[tuple[ast.Call, Effect]]:
        """Yield the calls of a loop marked by hand that train through an object made by name."""
        for open_call in self._open_calls(region):
            yield open_call.call, open_call.effect

    def _plain(self, region: Region) -> Effect:
        """Return the known training effects in a turn of the loop."""
        effect = Effect.NONE
        for part in self._turn(region):
            for call, _ in part.calls:
                effect |= self.analysis.effect(call)
        return effect

    def _open_calls(self, region: Region) -> Iterator[_Open]:
        effect = self._plain(region)
        trains = any(part in self.analysis.step_loops for part in self.analysis.regions(region))
        for call, scope in (entry for part in self._turn(region) for entry in part.calls):
            if not isinstance(call.func, ast.Attribute) or not self._is_open(call, scope):
                continue
            method = call.func.attr
            methods = self._methods.get(method)
            if not methods and self._anyones.get(method) and self._made_by_name(call.func, scope):
                methods = self._anyones[method]  # a configuration names the class
            by_method = not methods and not trains
            if by_method:
                methods = self._of_anyone(call, scope)
            if methods:
                known = Effect.NONE
                for _, hidden in methods:
                    known |= hidden
                yield _Open(call, known, tuple(class_.name for class_, _ in methods), by_method)
            elif HIDDEN_TRAINING.fullmatch(method) and self._made_by_name(call.func, scope):
                yield _Open(call, BOTH, ())
            elif effect and HALF.search(method) and self._made_by_name(call.func, scope):
                yield _Open(call, BOTH & ~effect, ())

    def _of_anyone(self, call: ast.Call, scope: Scope) -> list[tuple[Class, Effect]]:
        """Return the classes with a method that does a whole step and that `call` may run."""
        assert isinstance(call.func, ast.Attribute)
        methods = [
            (class_, effect)
            for class_, effect in self._anyones.get(call.func.attr, ())
            if effect == BOTH and (of := self.analysis.evaluator.method(class_, call.func.attr))
            if fits(call, of)
        ]
        return methods if methods and not self._is_container(call.func.value, scope) else []

    def _is_container(self, node: ast.expr, scope: Scope) -> bool:
        """Whether `node` is bound to a container of Python somewhere: `metrics = {}` has an `update`, too."""
        evaluator = self.analysis.evaluator
        match node:
            case ast.Name(id=name):
                bindings = evaluator.bindings_of(name, scope)
            case ast.Attribute(value=owner, attr=name):
                bindings = evaluator.members_of(owner, name, scope)
            case _:
                return not isinstance(node, ast.Subscript)
        values = (
            value.elts[binding.index]  # `metrics, done = {}, True`
            if isinstance(value, ast.Tuple) and binding.index < len(value.elts)
            else value
            for binding in bindings
            if (value := binding.value) is not None and binding.kind in ("value", "item")
        )
        return any(map(self._makes_container, values))

    def _makes_container(self, value: ast.expr, follows: bool = True) -> bool:
        """Whether `value` is a container, or what a function of the project returns as one."""
        if isinstance(value, DISPLAYS):
            return True
        if not isinstance(value, ast.Call):
            return False
        if _last(value.func) in CONTAINERS:
            return True
        return follows and any(
            self._makes_container(returned, follows=False)
            for function in self.analysis.running[value].functions
            for returned in function.returns
        )

    def _turn(self, region: Region) -> Iterator[Region]:
        """Yield the regions that run in one turn of a loop: its body, blocks, and inner non-step loops."""
        yield region
        for inner in region.inner:
            if inner not in self.analysis.step_loops and inner not in self._found:
                yield from self._turn(inner)

    def _is_open(self, call: ast.Call, scope: Scope) -> bool:
        """Whether `call` is a method of an unknown object."""
        function = call.func
        if not isinstance(function, ast.Attribute) or self.analysis.running[call].functions:
            return False
        known = self.analysis.evaluator.values(function.value, scope)
        return not known - {UNKNOWN} and not self.analysis.effect(call)

    def _made_by_name(self, method: ast.Attribute, scope: Scope) -> bool:
        """Whether the object of `method` was made by a function that takes the name of a class."""
        receiver = method.value
        if not isinstance(receiver, ast.Name | ast.Attribute):
            return False
        return any(
            isinstance(binding.value, ast.Call)
            and (
                MAKES_BY_NAME.search(_last(binding.value.func))
                or self._looks_up(binding.value, binding.scope)
            )
            for binding in self.analysis.evaluator.origins(receiver, scope)
        ) or bool(self._shelves.made(receiver, scope))

    def _looks_up(self, call: ast.Call, scope: Scope) -> bool:
        """Whether `call` runs a function of the project that calls a function it looks up by name."""
        for callee in self.analysis.evaluator.values(call.func, scope):
            if not isinstance(callee, Function):
                continue
            for returned in callee.returns:
                values = [returned]
                if isinstance(returned, ast.Name):
                    values = [b.value for b in callee.bindings.get(returned.id, ()) if b.value]
                if any(self._calls_what_it_finds(value, callee) for value in values):
                    return True
        return False

    def _calls_what_it_finds(self, value: ast.expr, function: Function) -> bool:
        """Whether `value` is `REGISTRY.get(name)(…)`, or calls an unknown variable."""
        if not isinstance(value, ast.Call):
            return False
        called = value.func
        if isinstance(called, ast.Name):
            bound = function.bindings.get(called.id, ())
            is_variable = bool(bound) and all(b.kind in VARIABLE for b in bound)
            return is_variable and not self.analysis.evaluator.values(called, function) - {UNKNOWN}
        match called:
            case ast.Call(func=ast.Attribute(attr="get")) | ast.Subscript():
                return True
            case ast.Call(func=ast.Name(id="getattr" | "eval" | "locate")):
                return True
            case ast.Attribute(attr="build"):  # mmcv's: MODELS.build(config)
                return True
        return False

    @cached_property
    def _anyones(self) -> Mapping[str, list[tuple[Class, Effect]]]:
        """Training methods of all classes of the project."""
        methods = defaultdict(list)
        for scope in self.analysis.scopes.values():
            for class_ in scope.classes:
                for name, effect in self._training(class_):
                    methods[name].append((class_, effect))
        return methods

    def may_run(self, scope: ModuleScope) -> Mapping[ast.Call, list[Function]]:
        """Return the calls in a module of unknown objects, with the methods that they may run.

        What the object was made from decides: the methods of the classes that are stored there. If that is
        not known, those of classes named like the object. A `forward` with gradients is left out: it runs in
        a step, whoever calls it.
        """
        if scope not in self._may_run:
            self._may_run[scope] = dict(self._unknown_calls(scope))
        return self._may_run[scope]

    def _unknown_calls(self, scope: ModuleScope) -> Iterator[tuple[ast.Call, list[Function]]]:
        of_object = [method for name in CALLED for method in self._called.get(name, ())]
        for call, at in self.analysis.calls_in(scope):
            func = call.func
            if self.analysis.running[call].functions or not self._is_unknown(func, at):
                continue
            methods = [*self._stored_methods(func, at)]
            if not methods:
                named = _closest(_last(func), of_object)
                if isinstance(func, ast.Attribute):
                    named += _closest(_last(func.value), self._called.get(func.attr, []))
                methods = [method for _, method in named]
            fitting = [m for m in methods if fits(call, m) and not is_step_alone(m)]
            if not fitting and isinstance(func, ast.Attribute):
                trained = self._of_anyone(call, at)
                named_so = (self.analysis.evaluator.method(of, func.attr) for of, _ in trained)
                fitting = [method for method in named_so if method is not None]
            if fitting:
                yield call, list(dict.fromkeys(fitting))

    def _stored_methods(self, func: ast.expr, scope: Scope) -> Iterator[Function]:
        """Yield what a call of `func` runs if its object was made from a class that is stored by name."""
        for item in self._shelves.made(func, scope):
            if isinstance(item, Function):
                yield item
            yield from self._named_methods(item, CALLED)
        if isinstance(func, ast.Attribute) and self._may_be_stored(func.attr):
            for item in self._shelves.made(func.value, scope):
                yield from self._named_methods(item, (func.attr,))

    def _may_be_stored(self, name: str) -> bool:
        """Whether a class that is stored by name has a method `name`, as far as that is known."""
        return self._shelves.looks_up or name in self._stored_names

    @cached_property
    def _stored_names(self) -> frozenset[str]:
        return frozenset(
            name
            for item in self._shelves.stored
            for class_ in self._classes(item)
            for name, _ in self._all_methods(class_)
        )

    def _named_methods(self, item: Stored, names: Collection[str]) -> Iterator[Function]:
        """Yield the methods of these names of a stored class, or of the classes a stored function returns."""
        for class_ in self._classes(item):
            yield from (method for name, method in self._all_methods(class_) if name in names)

    def _classes(self, item: Stored) -> Iterator[Class]:
        """Yield a stored class, or the classes of what a stored function returns."""
        if isinstance(item, Class):
            yield item
            return
        for returned in item.returns:
            for value in self.analysis.evaluator.values(returned, item):
                if isinstance(value, ClassInstance):
                    yield value.of

    def methods_of(self, call: ast.Call) -> list[Function]:
        """Return the methods that `call` may run if it calls an unknown object."""
        return self._open_methods.get(call, [])

    @cached_property
    def _open_methods(self) -> Mapping[ast.Call, list[Function]]:
        return {
            call: methods
            for scope in self.analysis.scopes.values()
            for call, methods in self.may_run(scope).items()
        }

    def _is_unknown(self, node: ast.expr, scope: Scope) -> bool:
        """Whether `node` may be an object of any class: it is a variable, an attribute or a result."""
        if self.analysis.evaluator.values(node, scope) - {UNKNOWN}:
            return False
        if isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
            return True
        bindings = (
            [*self.analysis.evaluator.bindings_of(node.id, scope)]
            if isinstance(node, ast.Name)
            else []
        )
        return any(binding.kind in VARIABLE | {"param"} for binding in bindings)

    def _training(self, class_: Class) -> Iterator[tuple[str, Effect]]:
        """Yield the training methods of a class, inherited ones included."""
        for name, method in self._all_methods(class_):
            if effect := self.analysis.effects.get(method, Effect.NONE):
                yield name, effect

    def _all_methods(self, class_: Class) -> Iterator[tuple[str, Function]]:
        """Yield the methods of a class, inherited ones included."""
        seen: set[str] = set()
        for ancestor in self.analysis.evaluator.ancestors(class_):
            for name, bindings in ancestor.bindings.items():
                for binding in bindings:
                    if isinstance(binding.scope, Function) and name not in seen:
                        seen.add(name)
                        yield name, binding.scope

    def _named(self) -> set[str]:
        """Return the last parts of dotted names in the strings of a project that uses such names."""
        called = {_last(call.func) for call in self.analysis.running}
        if not any(MAKES_BY_NAME.search(name) for name in called):
            return set()
        return {
            text.rpartition(".")[2]
            for module in self.analysis.project.modules.values()
            for text in module.strings
            if DOTTED.fullmatch(text)
        }


@lru_cache(maxsize=2)
def registries_of(analysis: Analysis) -> Registries:
    """Return the training methods of the classes made by name, computed once for all files."""
    return Registries(analysis)


def is_stored(item: Stored, analysis: Analysis) -> bool:
    """Whether a class or a function is stored under a name: a library's decorator is judged by its own."""
    return item in shelves_of(analysis).stored or any(
        REGISTERS.search(_last(d.func if isinstance(d, ast.Call) else d)) for d in item.decorators
    )


def _closest(name: str, methods: list[tuple[str, Function]]) -> list[tuple[str, Function]]:
    """Return those of `methods` whose class is named like the object `name`: HungarianMatcher, `matcher`."""
    plain = name.replace("_", "").lower()
    if len(plain) < LEAST_LETTERS:
        return []
    return [
        (class_, method)
        for class_, method in methods
        if plain in class_.lower() or class_.replace("_", "").lower() in plain
    ]


def fits(call: ast.Call, method: Function) -> bool:
    """Whether `method` can take the arguments of `call`."""
    arguments = method.arguments
    names = method.parameters[method.is_bound :]
    is_starred = any(isinstance(arg, ast.Starred) for arg in call.args)
    named = {keyword.arg for keyword in call.keywords}
    if arguments.vararg is None and len(call.args) - is_starred > len(names):
        return False
    known = {*method.all_parameters} - {*method.parameters[: method.is_bound]}
    if arguments.kwarg is None and named - known - {None}:
        return False
    if is_starred or None in named:
        return True
    needed = set(names[len(call.args) : len(names) - len(arguments.defaults)])
    return needed <= named


def is_step_alone(function: Function) -> bool:
    """Whether `function` is a forward with gradients, which is a step of its own, whoever calls it."""
    without = {name.rpartition(".")[2] for name in NO_GRADIENTS}
    return function.name == "forward" and not function.is_a(*without)


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")

"""Values of a script's variables, and the calls of its functions with their arguments."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import cached_property
from typing import Any

import libcst as cst

from migrate.reading.names.parsed import Parsed
from migrate.syntax.tree import bind, is_attribute_of_self, last_part, string_value

Owner = cst.FunctionDef | cst.Module
Place = tuple[int, int]

# Methods that return pairs of a name and the object of that name.
NAMED = frozenset({"items", "named_buffers", "named_children", "named_modules", "named_parameters"})
# Methods that put their arguments into a container.
OF_OBJECTS = frozenset({"__call__", "__init__"})  # run by calls of objects and classes
FILLS = frozenset({"add", "append", "appendleft", "extend", "insert", "setdefault", "update"})
# Iterables that yield counters.
COUNTS = frozenset({"enumerate", "range"})
# Maximum number of names and calls that `iterated` follows.
DEEPEST = 6
# Functions that yield the elements of each argument.
ZIPS = frozenset({"zip", "zip_longest"})
# Functions that yield the elements of their argument.
TRANSPARENT = frozenset({"tqdm", "trange", "iter", "reversed", "list", "tuple", "islice", "track"})


class How(Enum):
    """Relation of a name to the expression that it is bound to."""

    VALUE = auto()  # the value itself
    PART = auto()  # a part of the value: `a, b = value`
    ELEMENT = auto()  # an element of the value, by iterating over it
    ADDED = auto()  # the earlier value with this value added
    COUNTER = auto()  # a Python integer, or the name of something
    OTHER = auto()


@dataclass(frozen=True, eq=False)
class Assignment:
    """Assignment of a value to a name at one location.

    Args:
        place: line and column of the statement.
        how: how the name follows from `value`.
        value: the expression, or None.
        loop: the loop of which the name is a target.
        index, count: position of the name in a tuple, and length of the tuple; a part of an element has no
            index.
        before: the mention of the name in `name += value`, which stands for the earlier value.
    """

    place: Place
    how: How
    value: cst.BaseExpression | None = None
    loop: cst.For | None = None
    index: int | None = None
    count: int = 0
    before: cst.Name | None = None


@dataclass(frozen=True, eq=False)
class Put:
    """Value that a statement puts into a container.

    Args:
        key: the key, if the statement spells it as a string.
        value: the expression.
    """

    key: str | None
    value: cst.BaseExpression


class Bindings:
    """Values of the names, parameters and calls of one script, collected in one pass.

    `Script.bindings` decides which binding a name refers to.
    """

    def __init__(self, context: Parsed) -> None:
        self._context = context
        self._given: dict[int, Assignment] = {}  # by the id of the name that is bound
        self._branches_known: dict[int, dict[int, str]] = {}  # by the id of the name that is bound
        self.returns: dict[int, list[cst.BaseExpression]] = defaultdict(list)
        self.used: dict[tuple[int, str], set[str]] = defaultdict(set)
        self.classes: dict[str, cst.ClassDef] = {}
        self._put: dict[tuple[int, str], list[Put]] = defaultdict(list)
        # By the name of the container and the key.
        self._keyed: dict[tuple[str, str], list[tuple[cst.Name, cst.BaseExpression]]] = defaultdict(
            list
        )
        self._calls: dict[str, list[cst.Call]] = defaultdict(list)
        for node in context.all_of(*ADDS):
            ADDS[type(node)](self, node)

    def given(self, name: cst.Name) -> list[Assignment]:
        """Return the assignments to the variable that `name` mentions, in the order of the source."""
        nodes = (binding.node for binding in self._context.bindings(name))
        return [self._given[id(node)] for node in nodes if id(node) in self._given]

    def put_into(self, name: cst.Name | cst.Attribute) -> list[Put]:
        """Return what the function around `name` puts into it: `name[key] = x`, `name.append(x)`.

        For an attribute of `self`, return what the class puts into it.
        """
        return self._put.get(self._holder(name) or (0, ""), [])

    def put_by_others(self, name: cst.Name, key: str) -> list[cst.BaseExpression]:
        """Return what functions put at `key` of a parameter that is called as the parameter `name`.

        Functions that hand one dictionary to each other call it the same: `info["losses"] = model(x)`.
        """
        if self.parameter(name) is None:
            return []
        puts = self._keyed.get((name.value, key), ())
        return [value for into, value in puts if self.parameter(into) is not None]

    def is_put(self, key: str) -> bool:
        """Whether the script puts a value at `key` of a container that exists: `out[key] += x`."""
        return key in self._keys_put

    @cached_property
    def _keys_put(self) -> frozenset[str]:
        targets = [node.target for node in self._context.all_of(cst.AugAssign)]
        added = (
            string_value(element.slice.value)
            for target in targets
            if isinstance(target, cst.Subscript)
            for element in target.slice
            if isinstance(element.slice, cst.Index)
        )
        put = (part.key for parts in self._put.values() for part in parts)
        return frozenset(key for key in (*added, *put) if key is not None)

    def _holder(self, node: cst.CSTNode | None) -> tuple[int, str] | None:
        """Return the owner of the container `node` and its name; None for any other expression."""
        if isinstance(node, cst.Name):
            return id(self.owner(node)), node.value
        if node is not None and is_attribute_of_self(node):
            return id(self._context.class_around(node)), f"self.{node.attr.value}"
        return None

    def nearest(self, name: cst.Name) -> Assignment | None:
        """Return the assignments at the last location above `name`; empty if that is not plain to see."""
        bindings = self._context.bindings(name)
        assignments = self.given(name)
        if not assignments:
            return None
        if bindings[0].scope.node is self.owner(name):
            start = self._context.position(self._context.statement_around(name))
            earlier = [
                assignment
                for assignment in assignments
                if assignment.place < (start.line, start.column)
            ]
            if not earlier and any(isinstance(binding.node, cst.Param) for binding in bindings):
                return None
            assignments = earlier or assignments  # bound below, in an earlier turn of a loop
        return assignments[-1]

    def reaching(self, name: cst.Name) -> list[Assignment]:
        """Return the assignments that `name` may hold here: the last one, and those in branches that may run.

        Empty if the last assignment is not plain to see, as for `nearest`.
        """
        last = self.nearest(name)
        if last is None:
            return []
        around = self._branches(name)
        assignments: list[Assignment] = []
        bound = [b.node for b in self._context.bindings(name) if id(b.node) in self._given]
        for node in reversed(bound):
            assignment = self._given[id(node)]
            if assignment.place > last.place and assignment is not last:
                continue
            branches = self._branches_of(node)
            if any(around.get(test, branch) != branch for test, branch in branches.items()):
                continue
            assignments.append(assignment)
            if branches.keys() <= around.keys():
                break  # every branch assigns this
        return assignments or [last]

    def _branches_of(self, binding: cst.CSTNode) -> dict[int, str]:
        """Return `_branches` of a location that binds a name, cached: each use of the name needs it."""
        if id(binding) not in self._branches_known:
            self._branches_known[id(binding)] = self._branches(binding)
        return self._branches_known[id(binding)]

    def _branches(self, node: cst.CSTNode) -> dict[int, str]:
        """Return the conditions around `node`, by id, with the branch of each that contains `node`."""
        branches: dict[int, str] = {}
        below = node
        for above in self._context.ancestors(node):
            if type(above) is cst.FunctionDef or type(above) is cst.Lambda:
                break
            if type(above) is cst.If and below is not above.test:
                branches[id(above)] = "body" if below is above.body else "else"
            below = above
        return branches

    def parameter(self, name: cst.Name) -> tuple[cst.FunctionDef, cst.Param] | None:
        """Return the parameter that `name` is, and its function."""
        for binding in self._context.bindings(name):
            function = binding.scope.node
            if type(binding.node) is cst.Param and type(function) is cst.FunctionDef:
                return function, binding.node
        return None

    def owner(self, node: cst.CSTNode) -> Owner:
        """Return the function whose body holds `node`, or the module."""
        return self._context.function_around(node) or self._context.module

    def passed(self, function: cst.FunctionDef, name: str) -> Iterator[cst.BaseExpression]:
        """Yield the values that calls in the script pass for the parameter `name` of `function`."""
        names = [parameter.name.value for parameter in function.params.params]
        is_method = names[:1] == ["self"]
        calls = [*self._calls.get(function.name.value, ())]
        if function.name.value == "forward":
            calls += self._calls.get("apply", ())  # of a torch.autograd.Function
        elif function.name.value not in OF_OBJECTS:
            # Under another name: `show = partial(log, 1)`, then `show(x)`; or a parameter that holds the
            # function.
            named = set(map(id, calls))
            calls += [call for call, _ in self.callers(function) if id(call) not in named]
        for call in calls:
            for definition in self._context.run_by(call):
                if not any(candidate is function for candidate in self._context.here([definition])):
                    continue
                bound = bind(call, names[is_method + definition.bound :])
                if bound is not None and name in bound:
                    yield bound[name].value

    def callers(self, function: cst.FunctionDef) -> list[tuple[cst.Call, int]]:
        """Return the calls of the script that run `function`, with the number of parameters bound before.

        A call of an object runs its `forward` or `__call__`.
        """
        return self._callers.get(id(function), [])

    @cached_property
    def _callers(self) -> dict[int, list[tuple[cst.Call, int]]]:
        callers: dict[int, list[tuple[cst.Call, int]]] = defaultdict(list)
        for call in self._context.all_of(cst.Call):
            for definition in self._context.run_by(call):
                for function in self._context.here([definition]):
                    callers[id(function)].append((call, definition.bound))
        return callers

    def _add_assign(self, node: cst.Assign) -> None:
        for target in node.targets:
            self._bind(target.target, node.value, node)
            into = target.target
            holder = self._holder(into.value) if isinstance(into, cst.Subscript) else None
            if isinstance(into, cst.Subscript) and holder is not None:
                index = into.slice[0].slice if len(into.slice) == 1 else None
                key = string_value(index.value) if isinstance(index, cst.Index) else None
                self._put[holder].append(Put(key, node.value))
                if key is not None and isinstance(into.value, cst.Name):
                    self._keyed[into.value.value, key].append((into.value, node.value))

    def _add_value(self, node: cst.AnnAssign | cst.NamedExpr) -> None:
        if node.value is not None:
            self._bind(node.target, node.value, node)

    def _add_aug_assign(self, node: cst.AugAssign) -> None:
        self._name(node.target, How.ADDED, node.value, node)

    def _add_for(self, node: cst.For) -> None:
        for name, how, value in pairs(node.target, self.iterated(node.iter)):
            self._name(name, how, value, node, node)

    def iterated(self, over: cst.BaseExpression) -> cst.BaseExpression:
        """Return what a loop over `over` counts: `enumerate(x)` of `with tqdm(enumerate(x)) as over`.

        Return `over` itself if it has more than one value, or no value that counts.
        """
        value: cst.CSTNode | None = over
        for _ in range(DEEPEST):
            if isinstance(value, cst.Call):
                last = last_part(value.func)
                if last in COUNTS:
                    return value
                value = value.args[0].value if last in TRANSPARENT and value.args else None
            elif isinstance(value, cst.Name):
                value = self._only_value(value)
            else:
                break
        return over

    def _only_value(self, name: cst.Name) -> cst.CSTNode | None:
        """Return the only value of `name`, also from `with value as name`, not from `name = tqdm(name)`."""
        values = []
        for binding in self._context.bindings(name):
            above = self._context.parent(binding.node)
            item = self._context.parent(above) if isinstance(above, cst.AsName) else None
            value = item.item if isinstance(item, cst.WithItem) else self._context.value_of(binding)
            if not _hands_on(value, name):
                values.append(value)
        return values[0] if len(values) == 1 else None

    def _add_class(self, node: cst.ClassDef) -> None:
        self.classes[node.name.value] = node

    def _add_return(self, node: cst.Return) -> None:
        if node.value is not None:
            self.returns[id(self.owner(node))].append(node.value)

    def _add_attribute(self, node: cst.Attribute) -> None:
        if isinstance(node.value, cst.Name):
            self.used[id(self.owner(node)), node.value.value].add(node.attr.value)

    def _add_call(self, node: cst.Call) -> None:
        self._calls[last_part(node.func)].append(node)
        into = self._holder(node.func.value) if isinstance(node.func, cst.Attribute) else None
        if into is not None and last_part(node.func) in FILLS:
            put = self._put[into]
            for arg in node.args:
                if isinstance(arg.value, cst.Dict):
                    entries = [e for e in arg.value.elements if isinstance(e, cst.DictElement)]
                    put += [Put(string_value(entry.key), entry.value) for entry in entries]
                else:
                    put.append(Put(arg.keyword.value if arg.keyword else None, arg.value))

    def _add_comprehension(self, node: cst.BaseComp) -> None:
        clause: cst.CompFor | None = node.for_in
        while clause is not None:
            for target, how, value in pairs(clause.target, clause.iter):
                self._given[id(target)] = Assignment((0, 0), how, value)
            clause = clause.inner_for_in

    def _bind(
        self, target: cst.BaseExpression, value: cst.BaseExpression, node: cst.CSTNode
    ) -> None:
        if isinstance(target, cst.Tuple | cst.List):
            for index, element in enumerate(target.elements):
                part = self._taken_apart(value, index, len(target.elements))
                starred = _starred(value, index, target)
                if part is not None:
                    self._bind(element.value, part, node)
                elif isinstance(starred, cst.StarredElement):
                    self._name(element.value, How.PART, starred.value, node)
                elif starred is not None:
                    self._bind(element.value, starred.value, node)
                else:
                    whole = isinstance(element, cst.Element)
                    number = index if whole and isinstance(element.value, cst.Name) else None
                    for name in _flat(element.value):
                        self._name(name, How.PART, value, node)
                        self._number(name, number, len(target.elements))
        else:
            self._name(target, How.VALUE, value, node)

    def _number(self, name: cst.BaseExpression, index: int | None, count: int) -> None:
        """Record which element of a tuple a name gets."""
        assignment = self._given.get(id(name))
        if assignment is not None and index is not None:
            self._given[id(name)] = replace(assignment, index=index, count=count)

    def _taken_apart(
        self, value: cst.BaseExpression, index: int, count: int
    ) -> cst.BaseExpression | None:
        """Return element `index` of a tuple of `count`, also from a choice: `(a, b) if c else (d, e)`."""
        if isinstance(value, cst.Tuple | cst.List):
            if any(isinstance(element, cst.StarredElement) for element in value.elements):
                return None
            return value.elements[index].value if len(value.elements) == count else None
        if isinstance(value, cst.IfExp):
            body = self._taken_apart(value.body, index, count)
            orelse = self._taken_apart(value.orelse, index, count)
            if body is not None and orelse is not None:
                # Parentheses that separated the parts from keywords are gone.
                return cst.IfExp(value.test, body, orelse)
        return None

    def _name(
        self,
        target: cst.BaseExpression,
        how: How,
        value: cst.BaseExpression | None,
        node: cst.CSTNode,
        loop: cst.For | None = None,
    ) -> None:
        if isinstance(target, cst.Name):
            start = self._context.position(self._context.statement_around(node))
            before = target if how is How.ADDED else None
            assignment = Assignment((start.line, start.column), how, value, loop, before=before)
            self._given[id(target)] = assignment


ADDS: dict[type[cst.CSTNode], Callable[[Bindings, Any], None]] = {
    cst.AnnAssign: Bindings._add_value,
    cst.Assign: Bindings._add_assign,
    cst.Attribute: Bindings._add_attribute,
    cst.AugAssign: Bindings._add_aug_assign,
    cst.Call: Bindings._add_call,
    cst.ClassDef: Bindings._add_class,
    cst.DictComp: Bindings._add_comprehension,
    cst.For: Bindings._add_for,
    cst.GeneratorExp: Bindings._add_comprehension,
    cst.ListComp: Bindings._add_comprehension,
    cst.NamedExpr: Bindings._add_value,
    cst.Return: Bindings._add_return,
    cst.SetComp: Bindings._add_comprehension,
}


def _hands_on(value: cst.CSTNode | None, name: cst.Name) -> bool:
    """Whether `value` iterates over the earlier value of `name`: `tqdm(name)`."""
    if (
        not isinstance(value, cst.Call)
        or last_part(value.func) not in TRANSPARENT
        or not value.args
    ):
        return False
    first = value.args[0].value
    return isinstance(first, cst.Name) and first.value == name.value


def pairs(
    target: cst.BaseExpression, value: cst.BaseExpression
) -> Iterator[tuple[cst.BaseExpression, How, cst.BaseExpression | None]]:
    """Yield each name that `for target in value` binds, with its relation to the value."""
    called = value.func if isinstance(value, cst.Call) else None
    name = called.value if isinstance(called, cst.Name) else None
    if isinstance(called, cst.Attribute):
        name = called.attr.value
    passed = value.args if isinstance(value, cst.Call) else ()
    args = [arg.value for arg in passed]
    # The iterables of a zip; `strict=True` is one of its options.
    zipped = (
        [] if any(arg.star for arg in passed) else [a.value for a in passed if a.keyword is None]
    )
    parts = [e.value for e in target.elements] if isinstance(target, cst.Tuple | cst.List) else []
    if name == "range":
        yield target, How.COUNTER, None
    elif name == "enumerate" and args and len(parts) == 2:
        yield parts[0], How.COUNTER, None
        yield from pairs(parts[1], args[0])
    elif name in ZIPS and parts and len(parts) == len(zipped):
        for part, arg in zip(parts, zipped, strict=True):
            yield from pairs(part, arg)
    elif name in NAMED and len(parts) == 2:
        yield parts[0], How.COUNTER, None
        for leaf in _flat(parts[1]):
            yield leaf, How.ELEMENT, value
    elif name in TRANSPARENT or name == "log_every":
        yield from pairs(target, args[0]) if args else ()
    else:
        for leaf in _flat(target):
            yield leaf, How.ELEMENT, value


def _starred(
    value: cst.BaseExpression, index: int, target: cst.Tuple | cst.List
) -> cst.BaseElement | None:
    """Return the element of `*x.shape, x.device` that target number `index` gets."""
    if not isinstance(value, cst.Tuple | cst.List):
        return None
    elements = value.elements
    stars = [i for i, element in enumerate(elements) if isinstance(element, cst.StarredElement)]
    count = len(target.elements)
    if len(stars) != 1 or count < len(elements) - 1:
        return None
    if not all(isinstance(element, cst.Element) for element in target.elements):
        return None
    after = len(elements) - 1 - stars[0]
    if index < stars[0]:
        return elements[index]
    return elements[index - count] if index >= count - after else elements[stars[0]]


def _flat(target: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    if isinstance(target, cst.Tuple | cst.List):
        for element in target.elements:
            yield from _flat(element.value)
    elif isinstance(target, cst.StarredElement):
        yield from _flat(target.value)
    else:
        yield target


def calls_of(function: cst.FunctionDef, context: Parsed) -> list[cst.Call]:
    """Return the calls of a function of the module; empty if the function is also used without a call."""
    if context.functions.get(function.name.value) is not function:
        return []
    calls = []
    for mention in context.mentions(function.name):
        call = context.parent(mention)
        if mention is function.name:
            continue
        if not isinstance(call, cst.Call) or call.func is not mention:
            return []
        calls.append(call)
    return calls


def passed_for(name: cst.Name, context: Parsed) -> list[cst.BaseExpression]:
    """Return what each call of the script passes for the parameter that `name` mentions.

    Empty if `name` is no parameter of a module-level function, if a call passes nothing for it or cannot be
    read, or if the function is also used without a call.
    """
    owner, parameter = context.bound_to(name)
    if not isinstance(owner, cst.FunctionDef) or not isinstance(parameter, cst.Param):
        return []
    parameters = [
        parameter.name.value for parameter in (*owner.params.params, *owner.params.kwonly_params)
    ]
    passed = []
    for call in calls_of(owner, context):
        bound = bind(call, parameters)
        if bound is None or name.value not in bound:
            return []
        passed.append(bound[name.value].value)
    return passed

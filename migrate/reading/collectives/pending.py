"""Reads where replicas diverge before a pending collective has run: they wait forever.

Either some replicas alone read the value, or each replica takes a part of it by its own index. The collective
is then in a different graph in each replica. Each function is followed statement by statement. A collective
that a function of the script leaves pending in its result or its arguments counts at the call of the
function.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import libcst as cst

from migrate.model.calls.kind import Kind
from migrate.reading.collectives import pending_values as v
from migrate.reading.facts import Facts
from migrate.reading.flow.index_numbers import takes_index
from migrate.reading.flow.reads import in_text
from migrate.reading.script import Script
from migrate.reading.steps.in_step import is_step
from migrate.syntax.tree import base_name, is_dotted_name, nodes_of

# Origin of a pending value: a collective (id of its call), a parameter of the function (name), or an
# attribute of the objects of a class (id of the class and name, "4711.total").
Origin = int | str
Origins = frozenset[Origin]
State = dict[str, Origins]
NONE: Origins = frozenset()
ENTRY = ""  # removed from the state once the function has ended the graph
# Prefix of a class attribute's name in a state: the attribute of some object waits for a collective.
HELD = "@"


@dataclass
class FunctionRun:
    """Effects of running a function.

    Args:
        hits: reads in some replicas only, with the guard of each and what it waits for.
        returned: what the result waits for.
        state: what is pending at the end, by dotted name.
        ends: whether the function has ended the graph of its caller.
        looked: the parameters that the function reads, in whichever replica calls it.
    """

    hits: list[tuple[cst.CSTNode, cst.CSTNode, Origins]] = field(default_factory=list)
    returned: Origins = NONE
    state: State = field(default_factory=dict)
    ends: bool = False
    looked: set[str] = field(default_factory=set)

    def reads(self, parameter: str) -> cst.CSTNode | None:
        """Return the test of the rank under which `parameter` is read."""
        return next((guard for _, guard, origins in self.hits if parameter in origins), None)

    def writes(self, parameter: str) -> bool:
        """Whether a collective that has not run writes into `parameter`."""
        return any_call(self.state.get(parameter, NONE))


def any_call(origins: Origins) -> bool:
    """Whether `origins` contain a collective, not only parameters."""
    return any(isinstance(origin, int) for origin in origins)


def joined(state: State, other: State) -> State:
    """Return what is pending in either of two states."""
    return {key: state.get(key, NONE) | other.get(key, NONE) for key in {*state, *other}}


@dataclass(frozen=True)
class ReadOfPending:
    """Read by some replicas alone of a value that waits for collectives.

    Args:
        read: the expression.
        guard: the guard that keeps other replicas out, or what all replicas compute with their own index.
        collectives: the calls in the same function that make the collectives, in the order of the source.
        elsewhere: whether one of the calls runs a function of another file.
        by_index: whether all replicas read the value, each with a number computed from its index.
    """

    read: cst.CSTNode
    guard: cst.CSTNode
    collectives: tuple[cst.Call, ...]
    elsewhere: bool
    by_index: bool = False


@lru_cache(maxsize=2)  # the last ones: two rules and a hazard ask, one script after another
def pending_of(facts: Facts) -> Pending:
    """Return the reads of a script that wait for a collective in some replicas only."""
    return Pending(facts)


class Pending:
    """Reads of one script that wait for a collective in some replicas only.

    Args:
        facts: the script.
    """

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.calls: dict[int, cst.Call] = {}
        self.inner: dict[int, set[int]] = {}  # collectives of a call of a function of the script
        self.elsewhere: set[int] = set()  # calls of functions of other files
        self.lazy: set[int] = set()  # lines of statements that continue with pending values, unread
        self.left: dict[str, set[int]] = {}  # class attributes, with the collectives into them
        self._by_index: set[int] = set()  # nodes that compute with the index of the replica
        self._runs: dict[int, FunctionRun] = {}

    def reads(self) -> Iterator[ReadOfPending]:
        """Yield each such read, in the order of the functions."""
        if not self._concerned():
            return
        seen = set()
        context = self.facts.context
        roots: list[Root] = [context.module, *context.all_of(cst.FunctionDef)]
        for root in roots:
            self._leave(self.run_of(root))
        for root in roots:
            if isinstance(root, cst.FunctionDef) and self.facts.steps.inside(root.body):
                continue  # XLA305 reports reads in the step
            for read, guard, origins in self.run_of(root).hits:
                ids = [
                    call_id for call_id in self._collectives(origins) if self._apart(call_id, guard)
                ]
                if ids and id(read) not in seen:
                    seen.add(id(read))
                    calls = sorted((self.calls[call_id] for call_id in ids), key=self._place)
                    far = any(call_id in self.elsewhere for call_id in ids)
                    by_index = id(guard) in self._by_index
                    yield ReadOfPending(read, guard, tuple(calls), far, by_index)

    def _leave(self, run: FunctionRun) -> None:
        """Record what a function leaves pending in attributes of objects whose methods it has called."""
        for name, origins in run.state.items():
            if name.startswith(HELD):
                inner = {call_id for origin in origins for call_id in self.inner.get(origin, ())}  # type: ignore[arg-type]
                self.left.setdefault(name.removeprefix(HELD), set()).update(inner)

    def _collectives(self, origins: Origins) -> set[int]:
        """Return the collectives among `origins`, and the collectives of the attributes among them."""
        ids = {origin for origin in origins if isinstance(origin, int)}
        return ids.union(
            *(self.left.get(origin, ()) for origin in origins if isinstance(origin, str))
        )

    def run_of(self, root: Root) -> FunctionRun:
        """Return the effects of running `root`; empty while it is being analyzed."""
        if id(root) not in self._runs:
            self._runs[id(root)] = FunctionRun()
            self._runs[id(root)] = Walk(self, root).run()
        return self._runs[id(root)]

    def _concerned(self) -> bool:
        if "shims" in self.facts.names.roots and not self.facts.uses_xla:
            return False  # in the portable style collectives run at once outside of a step
        if not any(
            v.is_collective(call, self.facts) or v.makes_a_collective(call, self.facts)
            for call in self.facts.calls
        ):
            return False
        if self.facts.guards.any or any(map(self._is_used_by_some, self.facts.calls)):
            return True
        return any(takes_index(node, self.facts) for node in self._indexable())

    def _indexable(self) -> Iterator[cst.CSTNode]:
        for kind in (cst.Subscript, cst.BinaryOperation, cst.Call):
            yield from self.facts.context.all_of(kind)

    def takes_index(self, node: cst.CSTNode) -> bool:
        """Whether `node` computes with the index of the replica; such nodes are recorded."""
        if takes_index(node, self.facts):
            self._by_index.add(id(node))
            return True
        return False

    def _is_used_by_some(self, call: cst.Call) -> bool:
        """Whether `call` runs a function of another file that uses its arguments in some replicas only."""
        context = self.facts.context
        others = (
            definition for definition in context.run_by(call) if definition.path != context.file
        )
        return any(definition.used_by_some for definition in others)

    def _apart(self, collective: int, guard: cst.CSTNode) -> bool:
        """Whether the collective is reached by replicas that do not reach the code below `guard`."""
        return self.facts.guards.around(self.calls[collective]) is not guard

    def _place(self, call: cst.Call) -> tuple[int, int]:
        start = self.facts.context.position(call)
        return start.line, start.column


Root = cst.FunctionDef | cst.Module
COMPREHENSIONS = cst.ListComp | cst.SetComp | cst.GeneratorExp | cst.DictComp


class StatementVisitor(ABC):
    """Visitor that passes each statement to its handler; compound statements by their parts."""

    @abstractmethod
    def _block(self, statements: Sequence[cst.CSTNode]) -> None: ...

    @abstractmethod
    def _small(self, node: cst.CSTNode) -> None: ...

    @abstractmethod
    def _if(self, node: cst.If) -> None: ...

    @abstractmethod
    def _loop(self, node: cst.For | cst.While) -> None: ...

    @abstractmethod
    def _with(self, node: cst.With) -> None: ...

    @abstractmethod
    def _branches(self, branches: Sequence[cst.CSTNode | None]) -> None:
        """Run one of `branches`; None does nothing."""

    def _line(self, node: cst.SimpleStatementLine) -> None:
        for small in node.body:
            self._small(small)

    def _match(self, node: cst.Match) -> None:
        self._branches([None, *(case.body for case in node.cases)])

    def _statement(self, node: cst.CSTNode) -> None:
        if isinstance(node, cst.SimpleStatementLine):
            self._line(node)
        elif isinstance(node, cst.BaseSmallStatement):  # in `if x: y`
            self._small(node)
        elif isinstance(node, cst.If):
            self._if(node)
        elif isinstance(node, cst.Else | cst.Finally):
            self._block(node.body.body)
        elif isinstance(node, cst.For | cst.While):
            self._loop(node)
        elif isinstance(node, cst.With):
            self._with(node)
        elif isinstance(node, cst.Try | cst.TryStar):
            self._block(node.body.body)
            self._branches([None, *(handler.body for handler in node.handlers)])
            for more in (node.orelse, node.finalbody):
                if more is not None:
                    self._statement(more)
        elif isinstance(node, cst.Match):
            self._match(node)

    def _branch(self, branch: cst.CSTNode | None) -> None:
        if isinstance(branch, cst.BaseSuite):
            self._block(branch.body)
        elif branch is not None:
            self._statement(branch)


class Walk(StatementVisitor):
    """Single pass over a function or the module."""

    def __init__(self, pending: Pending, root: Root) -> None:
        self._pending, self._facts, self._root = pending, pending.facts, root
        self._context = pending.facts.context
        self._result = FunctionRun()
        self._state: State = {ENTRY: frozenset({ENTRY})}
        self._inline: cst.CSTNode | None = None  # the test of `a if rank == 0 else b`
        self._touched = self._read_in_line = False
        self._whole = False
        self._class = owner_of(root, self._context)
        if isinstance(root, cst.FunctionDef):
            self._whole = self._facts.steps.inside(root.body)
            for parameter in (*parameters(root), *further_parameters(root)):
                self._state[parameter] = frozenset({parameter})

    def run(self) -> FunctionRun:
        """Analyze the function once."""
        body = self._root.body.body if isinstance(self._root, cst.FunctionDef) else self._root.body
        self._block(body)
        self._result.state = self._state
        self._result.ends = ENTRY not in self._state
        if self._class is not None:
            for name, origins in list(self._state.items()):
                if name.startswith("self.") and name.count(".") == 1 and any_call(origins):
                    held = attribute_of(self._class, name.removeprefix("self."))
                    self._state[HELD + held] = origins
        return self._result

    def _block(self, statements: Sequence[cst.CSTNode]) -> None:
        for statement in statements:
            if not self._whole and self._facts.steps.inside(statement):
                self._state.clear()  # the graph ends with the step
            else:
                self._statement(statement)

    def _line(self, node: cst.SimpleStatementLine) -> None:
        self._touched = self._read_in_line = False
        super()._line(node)
        if self._touched and not self._read_in_line:
            self._pending.lazy.add(id(node))

    def _if(self, node: cst.If) -> None:
        self._test(node.test, node)
        self._branches([node.body, node.orelse])

    def _match(self, node: cst.Match) -> None:
        self._value(node.subject)
        super()._match(node)

    def _branches(self, branches: Sequence[cst.CSTNode | None]) -> None:
        """Analyze `branches`; what any of them leaves pending is pending afterwards. None is no branch."""
        before, after = self._state, State()
        for branch in branches:
            self._state = dict(before)
            self._branch(branch)
            after = joined(after, self._state)
        self._state = after

    def _loop(self, node: cst.For | cst.While) -> None:
        before = dict(self._state)
        iterated = node.iter if isinstance(node, cst.For) else None
        syncs = self._facts.values.kind(iterated) is Kind.DEVICE_LOADER
        for _ in range(2):  # what one turn leaves pending, the next one may read
            if isinstance(node, cst.For):
                if syncs:
                    self._state.clear()
                self._bind(node.target, self._value(node.iter))
            else:
                self._test(node.test, node)
            self._block(node.body.body)
            if isinstance(node, cst.For):
                self._write_back(node.target, node.iter)
        self._state = self._state if syncs else joined(before, self._state)
        if node.orelse is not None:
            self._statement(node.orelse)

    def _with(self, node: cst.With) -> None:
        step = is_step(node, self._context)
        if step:
            self._state.clear()
        for item in node.items:
            self._value(item.item)
        self._block(node.body.body)
        if step:
            self._state.clear()

    def _small(self, node: cst.CSTNode) -> None:
        if isinstance(node, cst.Assign):
            origins = self._value(node.value)
            for target in node.targets:
                self._bind(target.target, origins, node.value)
        elif isinstance(node, cst.AnnAssign) and node.value is not None:
            self._bind(node.target, self._value(node.value))
        elif isinstance(node, cst.AugAssign):
            self._add(base_name(node.target), self._value(node.value) | self._value(node.target))
        elif isinstance(node, cst.Return) and node.value is not None:
            self._result.returned |= self._value(node.value)
        elif isinstance(node, cst.Assert):
            self._test(node.test, node)
        elif isinstance(node, cst.Expr):
            self._value(node.value)

    def _bind(
        self,
        target: cst.BaseExpression,
        origins: Origins,
        value: cst.BaseExpression | None = None,
    ) -> None:
        if isinstance(target, cst.Tuple | cst.List):
            same = isinstance(value, cst.Tuple | cst.List) and len(value.elements) == len(
                target.elements
            )
            for index, element in enumerate(target.elements):
                part = value.elements[index].value if same else None  # type: ignore[union-attr]
                self._bind(element.value, self._value(part) if part is not None else origins, part)
        elif is_dotted_name(target):
            name = base_name(target) or ""
            for known in [k for k in self._state if k == name or k.startswith(f"{name}.")]:
                del self._state[known]
            if origins:
                self._state[name] = origins
        else:
            self._add(base_name(target), origins)

    def _add(self, name: str | None, origins: Origins) -> None:
        if name and origins:
            self._state[name] = self._state.get(name, NONE) | origins

    def _write_back(self, target: cst.BaseExpression, iterated: cst.BaseExpression) -> None:
        """Record with `losses` what a collective writes into `x` in `for x in losses`."""
        for name in nodes_of(target, cst.Name):
            origins = self._state.get(name.value, NONE)
            if any_call(origins):
                for place in v.places(iterated):
                    self._add(place, origins)

    def _test(self, test: cst.BaseExpression, at: cst.CSTNode) -> None:
        """Read the value of a condition; if it tests the rank first, only some replicas read it."""
        origins = self._value(test)
        if origins:
            self._look(test, origins, test, at if self._facts.guards.asks(test) else None)

    def _look(
        self,
        node: cst.CSTNode,
        origins: Origins,
        looked_at: cst.CSTNode | None = None,
        guard: cst.CSTNode | None = None,
    ) -> None:
        """Record a read of a value that waits for `origins`."""
        self._read_in_line = True
        guard = guard or self._inline or self._facts.guards.around(node)
        if guard is not None:
            self._result.hits.append((node, guard, origins))
            return
        self._result.looked |= {origin for origin in origins if isinstance(origin, str)}
        if looked_at is not None and is_dotted_name(looked_at):
            name = base_name(looked_at) or ""
            self._state.pop(name, None)  # now it has its value
            if name.startswith("self."):
                self._state[name] = NONE

    def _value(self, node: cst.CSTNode) -> Origins:
        """Return what the value of `node` waits for, and record the reads in it."""
        origins = self._of(node)
        self._touched = self._touched or any_call(origins)
        return origins

    def _of(self, node: cst.CSTNode) -> Origins:
        if isinstance(node, cst.BaseExpression) and v.is_description(node):
            return NONE
        if isinstance(node, cst.Name):
            return self._state.get(node.value, NONE)
        if isinstance(node, cst.Attribute):
            return self._of_attribute(node)
        if isinstance(node, cst.Call):
            return self._call(node)
        if isinstance(node, cst.FormattedStringExpression):
            return self._shown(node, node.expression)
        if isinstance(node, cst.BinaryOperation) and in_text(node):
            return self._shown(node, node.right)
        if isinstance(node, cst.IfExp):
            return self._of_condition(node)
        if isinstance(node, cst.NamedExpr):
            origins = self._value(node.value)
            self._bind(node.target, origins)
            return origins
        if isinstance(node, COMPREHENSIONS):
            return self._of_comprehension(node)
        if isinstance(node, cst.Arg):
            return self._value(node.value)
        origins = NONE.union(*(self._value(child) for child in v.children(node)))
        return self._by_index(node, origins)

    def _by_index(self, node: cst.CSTNode, origins: Origins) -> Origins:
        """Record an operation on values that wait for `origins`, with a different graph in each replica."""
        if origins and self._pending.takes_index(node):
            self._look(node, origins, guard=node)
        return origins

    def _of_attribute(self, node: cst.Attribute) -> Origins:
        if is_dotted_name(node) and (origins := self._state.get(base_name(node) or "")):
            return origins
        if properties := self._context.properties(node):
            runs = [self._of_objects(node, self._pending.run_of(getter)) for getter in properties]
            return self._value(node.value).union(*runs)
        origins = self._value(node.value) | self._of_own(node)
        if (
            is_dotted_name(node)
            and isinstance(node.value, cst.Name)
            and node.value.value in origins
        ):
            origins |= {base_name(node) or ""}  # this attribute of the parameter
        return origins

    def _of_own(self, node: cst.Attribute) -> Origins:
        """Return the origin of the attribute `node` of `self` that this method has not set."""
        of_self = isinstance(node.value, cst.Name) and node.value.value == "self"
        known = ENTRY not in self._state or f"self.{node.attr.value}" in self._state
        if self._class is None or not of_self or known:
            return NONE
        return frozenset({attribute_of(self._class, node.attr.value)})

    def _of_objects(self, node: cst.CSTNode, run: FunctionRun) -> Origins:
        """Record the attributes of objects that a method reads at `node`; return those in its result."""
        looked = frozenset(origin for origin in run.looked if is_attribute(origin))
        guard = self._inline or self._facts.guards.around(node) if looked else None
        if guard is None:
            self._result.looked |= looked
        elif ENTRY in self._state:
            here = NONE.union(
                *(self._state.get(HELD + attribute, NONE) for attribute in sorted(looked))
            )
            self._read_in_line = True
            self._result.hits.append((node, guard, here or frozenset(looked)))
        elif here := NONE.union(
            *(self._state.get(HELD + attribute, NONE) for attribute in sorted(looked))
        ):
            self._result.hits.append((node, guard, here))
        return frozenset(origin for origin in run.returned if is_attribute(origin))

    def _shown(self, node: cst.CSTNode, value: cst.BaseExpression) -> Origins:
        if origins := self._value(value):
            self._look(node, origins, value)
        return NONE

    def _of_condition(self, node: cst.IfExp) -> Origins:
        self._test(node.test, node)
        before = self._inline
        if self._facts.guards.asks(node.test):
            self._inline = node
        origins = self._value(node.body) | self._value(node.orelse)
        self._inline = before
        return origins

    def _of_comprehension(self, node: COMPREHENSIONS) -> Origins:
        loop: cst.CompFor | None = node.for_in
        outer = dict(self._state)
        loops = []
        while loop is not None:
            self._bind(loop.target, self._value(loop.iter))
            loops.append(loop)
            loop = loop.inner_for_in
        parts = [node.key, node.value] if isinstance(node, cst.DictComp) else [node.elt]
        origins = NONE.union(*(self._value(part) for part in parts))
        for inner in reversed(loops):
            self._write_back(inner.target, inner.iter)
            for name in nodes_of(inner.target, cst.Name):
                self._state.pop(name.value, None)
                if name.value in outer:
                    self._state[name.value] = outer[name.value]
        return origins

    def _call(self, node: cst.Call) -> Origins:
        func = node.func
        imported = self._context.qualified_name(func) is not None
        receiver = NONE
        if not imported and isinstance(func, cst.Attribute):
            receiver = self._value(func.value)
        args = [self._value(arg) for arg in node.args]
        passed = NONE.union(*args)
        if v.ends_the_graph(node, self._facts):
            if self._facts.guards.around(node) is None:
                self._state.clear()
            return NONE
        if v.is_collective(node, self._facts):
            return self._collective(node)
        functions = self._facts.context.called(node)
        elsewhere = self._used_elsewhere(node, args) if not functions else False
        if not functions and not elsewhere and v.is_read(node, bool(passed), self._facts):
            looked_at = node.args[0].value if len(node.args) == 1 else None
            if not passed and isinstance(func, cst.Attribute):
                looked_at = func.value
            if receiver | passed:
                self._look(node, receiver | passed, looked_at)
            self._add(v.kept_in(node, self._facts), passed)
            return NONE
        if functions:
            runs = [self._run(node, function, args) for function in functions[:3]]
            return receiver.union(*runs)
        if v.makes_a_collective(node, self._facts):
            self._pending.elsewhere.add(id(node))
            return passed | self._origin(node)
        self._add(v.kept_in(node, self._facts), passed)
        self._by_index(node, passed if imported else receiver)
        return receiver | passed

    def _used_elsewhere(self, call: cst.Call, args: Sequence[Origins]) -> bool:
        """Whether `call` runs a function of another file that uses its arguments in some replicas only."""
        here = self._facts.context.file
        is_used = False
        for definition in self._facts.context.run_by(call) if any(args) else ():
            for index, arg in enumerate(call.args if definition.path != here else ()):
                name = arg.keyword.value if arg.keyword is not None else None
                if args[index] and definition.is_used_by_some(index, name, arg.star):
                    guard = self._facts.guards.around(call) or call
                    self._result.hits.append((call, guard, args[index]))
                    is_used = True
        if is_used:
            self._read_in_line = True
        return is_used

    def _origin(self, call: cst.Call, inner: Origins = NONE) -> Origins:
        self._pending.calls[id(call)] = call
        if inner:
            known = self._pending.inner.setdefault(id(call), set())
            known.update(origin for origin in inner if isinstance(origin, int))
        self._touched = True
        return frozenset({id(call)})

    def _collective(self, call: cst.Call) -> Origins:
        origin = self._origin(call)
        for place in v.written(call, self._facts):
            self._state[place] = origin
        return origin if v.returns_it(call, self._facts) else NONE

    def _run(self, call: cst.Call, function: cst.FunctionDef, args: Sequence[Origins]) -> Origins:
        """Return what the result of a function of the script waits for; record its other effects."""
        run = self._pending.run_of(function)
        if run.ends and self._facts.guards.around(call) is None:
            self._state.clear()
        result = self._origin(call, run.returned) if any_call(run.returned) else NONE
        result |= self._of_objects(call, run)
        for name, origins in run.state.items():
            if name.startswith(HELD) and any_call(origins):
                self._state[name] = self._origin(call, self._within(origins))
        for index, arg in enumerate(call.args):
            for name in taking(function, index, arg):
                result |= self._pass(call, run, name, arg.value, args[index])
        return result

    def _pass(
        self,
        call: cst.Call,
        run: FunctionRun,
        name: str,
        arg: cst.BaseExpression,
        waits_for: Origins,
    ) -> Origins:
        """Record what a function does with an argument that its parameter `name` takes.

        Returns:
            What the function's result waits for because of the argument.
        """
        guard = run.reads(name) if waits_for else None
        if guard is None and waits_for and name in run.looked:
            guard = self._inline or self._facts.guards.around(call)
            if guard is None:
                self._result.looked |= {o for o in waits_for if isinstance(o, str)}
                if name not in run.state and is_dotted_name(arg):
                    self._state.pop(base_name(arg) or "", None)  # it has its value
        if guard is not None:
            self._read_in_line = True
            self._result.hits.append((call, guard, waits_for))
        self._run_attributes(call, run, name, arg)
        if run.writes(name):
            for place in v.places(arg):
                self._state[place] = self._origin(call, run.state[name])
        return waits_for if name in run.returned else NONE

    def _within(self, origins: Origins) -> Origins:
        """Return the collectives that the calls among `origins` run."""
        inner = self._pending.inner
        return NONE.union(
            *(inner.get(origin, {origin}) for origin in origins if isinstance(origin, int))
        )

    def _run_attributes(
        self, call: cst.Call, run: FunctionRun, name: str, arg: cst.CSTNode
    ) -> None:
        """Record the argument's attributes that a function reads in some replicas only, or leaves pending."""
        if not name or not is_dotted_name(arg):
            return
        place = base_name(arg) or ""
        for known in [k for k in self._state if k.startswith(f"{place}.")]:
            inner = name + known.removeprefix(place)
            guard = run.reads(inner)
            if guard is not None and self._state[known]:
                self._read_in_line = True
                self._result.hits.append((call, guard, self._state[known]))
        for inner, origins in run.state.items():
            if inner.startswith(f"{name}.") and any_call(origins):
                self._state[place + inner.removeprefix(name)] = self._origin(call, origins)


def parameters(function: cst.FunctionDef) -> list[str]:
    """Return the names of the parameters that take the positional arguments of a call, without `self`."""
    names = _names(function)
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def further_parameters(function: cst.FunctionDef) -> list[str]:
    """Return the parameters that are passed by keyword only, and those like `*values` and `**metrics`."""
    params = function.params
    stars = (params.star_arg, params.star_kwarg)
    more = [*params.kwonly_params, *(star for star in stars if isinstance(star, cst.Param))]
    return [parameter.name.value for parameter in more]


def taking(function: cst.FunctionDef, index: int, arg: cst.Arg) -> Sequence[str]:
    """Return the parameters of `function` that take the argument `arg` of a call, its `index`-th one."""
    names, params = parameters(function), function.params
    by_keyword = [*names, *(parameter.name.value for parameter in params.kwonly_params)]
    rest = [params.star_arg.name.value] if isinstance(params.star_arg, cst.Param) else []
    keywords = [params.star_kwarg.name.value] if params.star_kwarg is not None else []
    if arg.star == "**":
        return [*by_keyword[index:], *keywords]
    if arg.star == "*":
        return [*names[index:], *rest]
    if arg.keyword is not None:
        name = arg.keyword.value
        return [name] if name in by_keyword else keywords
    return [names[index]] if index < len(names) else rest


def _names(function: cst.FunctionDef) -> list[str]:
    return [p.name.value for p in (*function.params.posonly_params, *function.params.params)]


def owner_of(root: Root, context: Script) -> cst.ClassDef | None:
    """Return the class that has `root` as a method, with `self` before its parameters."""
    if not isinstance(root, cst.FunctionDef) or parameters(root) == _names(root):
        return None
    return context.class_around(root)


def attribute_of(owner: cst.ClassDef, name: str) -> str:
    """Return the origin for the attribute `name` of all objects of the class `owner`."""
    return f"{id(owner)}.{name}"


def is_attribute(origin: Origin) -> bool:
    """Whether `origin` is an attribute of the objects of a class."""
    return isinstance(origin, str) and origin[:1].isdigit()

"""Device operations that only some replicas have pending when a collective joins their graph.

Nothing runs on the device before the graph ends. What `if rank == 0:` computes or writes there becomes a part
of the graph of one replica. With a collective in that graph, the replicas run different programs that wait
for each other. Ending the graph in all replicas, before and after the operation, gives the operation a graph
of its own without a collective.

Each function is followed statement by statement; what it leaves pending counts at its calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import libcst as cst

from migrate.catalogue.words import KEEPING, NUMBERS, READ_METHODS, WAITS
from migrate.model.calls.effect import BOTH, Effect
from migrate.model.calls.kind import Kind
from migrate.model.calls.rank_tests import OF_RUN
from migrate.reading.collectives import computing
from migrate.reading.collectives import pending_values as v
from migrate.reading.collectives.elsewhere import changes_elsewhere, has_collective, has_read
from migrate.reading.collectives.pending import StatementVisitor
from migrate.reading.facts import Facts
from migrate.reading.replicas.guards import Guard
from migrate.reading.steps.in_step import is_step
from migrate.reading.values.collectives import TENSORS, called, makes_gloo_group
from migrate.syntax.tree import base_name, bind, code, is_dotted_name, keyword, nodes_of

Root = cst.FunctionDef | cst.Module
# Functions of Python that read one number, and its text; the tensor stays pending.
TO_NUMBER = NUMBERS | {"format", "round"}
RESULT = ""  # in place of a name: the return value of the function


@dataclass(frozen=True)
class LoneOperation:
    """Device operation that only some replicas make.

    Args:
        operation: the statement or expression.
        guard: the guard that keeps the other replicas out. None for a tensor without dimensions that is 0 in
            some replicas and 1 in others: both are constants of the graph.
        elsewhere: whether the guard is in a function of another file, which `operation` calls.
        reads: whether it reads what all replicas compute. The other replicas still have that pending.
    """

    operation: cst.CSTNode
    guard: Guard | None
    elsewhere: bool = False
    reads: bool = False


@dataclass(frozen=True)
class Uneven:
    """Operation that only some replicas have in one graph with a collective.

    Args:
        alone: the operation.
        collective: the collective, or a call or statement that reaches it; None for the collective of the
            training step that runs the function.
        before: whether the collective comes before the operation.
        unknown: whether a collective may also come before the operation in other files.
    """

    alone: LoneOperation
    collective: cst.CSTNode | None
    before: bool
    unknown: bool


@dataclass
class _State:
    """Pending operations at a point of a function.

    Args:
        alone: the operations of some replicas, by the dotted name of the tensor.
        computed: the tensors that all replicas compute.
        flags: tensors that may be a different constant in each replica, and whether a collective was pending.
        shared: the last collective.
        awaited: the dotted names of what the pending collectives write.
        open: whether what was pending when the function began may still be.
    """

    alone: dict[str, LoneOperation] = field(default_factory=dict)
    computed: set[str] = field(default_factory=set)
    flags: dict[str, tuple[LoneOperation, cst.CSTNode | None]] = field(default_factory=dict)
    shared: cst.CSTNode | None = None
    awaited: set[str] = field(default_factory=set)
    open: bool = True

    def copy(self) -> _State:
        """Return an independent copy of the state."""
        return _State(
            dict(self.alone),
            set(self.computed),
            dict(self.flags),
            self.shared,
            set(self.awaited),
            self.open,
        )

    def end(self) -> None:
        """Record that the graph ends in all replicas."""
        self.alone, self.computed, self.flags, self.open = {}, set(), {}, False
        self.shared, self.awaited = None, set()

    def read(self, names: set[str]) -> None:
        """Record that all replicas read what some collectives write, which runs these."""
        if self.awaited and self.awaited <= names:
            self.shared = None
        self.awaited -= names

    def join(self, other: _State) -> None:
        """Merge the pending operations of another state."""
        self.alone = {**other.alone, **self.alone}
        self.computed |= other.computed
        self.flags = {**other.flags, **self.flags}
        self.shared = self.shared or other.shared
        self.awaited |= other.awaited
        self.open = self.open or other.open


@dataclass
class _FunctionEffects:
    """Effects of running a function.

    Args:
        changes: dotted names outside of the function that it computes on the device.
        opened: operations of some replicas in a graph that the caller began.
        meets: the first collective in a graph that the caller began.
        read: the parameters that only some replicas read.
        last: the state at the end.
    """

    changes: set[str] = field(default_factory=set)
    opened: list[LoneOperation] = field(default_factory=list)
    meets: cst.CSTNode | None = None
    read: dict[str, LoneOperation] = field(default_factory=dict)
    last: _State = field(default_factory=_State)


@lru_cache(maxsize=2)  # the last ones: a rule and a hazard ask, one script after another
def uneven_graphs(facts: Facts) -> list[Uneven]:
    """Return the operations of a script that only some replicas have in a graph with a collective."""
    return UnevenGraphs(facts).all()


class UnevenGraphs:
    """Operations of a script that only some replicas have in a graph with a collective.

    Args:
        facts: the script.
    """

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.hits: dict[tuple[int, bool], Uneven] = {}
        self._effects: dict[int, _FunctionEffects] = {}

    def all(self) -> list[Uneven]:
        """Return the operations, in the order of the source."""
        context = self.facts.context
        if not (self.facts.guards.any or v.COLLECTIVE.search(context.source.data)):
            return []
        if not self._has_lone_operation():
            return []
        roots: list[Root] = [*context.all_of(cst.FunctionDef), context.module]
        for root in roots:
            self.effects_of(root)
        return sorted(self.hits.values(), key=lambda hit: context.place(hit.alone.operation))

    def _has_lone_operation(self) -> bool:
        """Whether anything makes an operation of some replicas: a guard, a bit, or a function elsewhere."""
        context = self.facts.context
        if self.facts.guards.any or context.calls.held_by_some:
            return True
        return any(
            computing.makes_bit(call, self.facts)
            or any(definition.used_by_some for definition in context.run_by(call))
            for call in self.facts.calls
        )

    def effects_of(self, root: Root) -> _FunctionEffects:
        """Return the effects of running `root`; empty while it is being analyzed."""
        if id(root) not in self._effects:
            self._effects[id(root)] = _FunctionEffects()
            self._effects[id(root)] = _UnevenWalk(self, root).effects()
        return self._effects[id(root)]


class _UnevenWalk(StatementVisitor):
    """Single pass over a function or the module."""

    def __init__(self, graphs: UnevenGraphs, root: Root) -> None:
        self._graphs, self._facts, self._root = graphs, graphs.facts, root
        self._context = graphs.facts.context
        self._effects = _FunctionEffects()
        self._state = _State()
        self._aliases: dict[str, str] = {}  # variable -> the object it is a part of, or an alias
        self._log: list[tuple[str, str]] = []  # log of the current branch: names and operations
        self._copied: set[str] = set()  # what the branch copies from the host
        self._whole = self._entered = False
        if isinstance(root, cst.FunctionDef):
            self._whole = self._facts.steps.inside(root.body)
            self._entered = self._whole and bool(self._facts.steps.origin(root.body))
        self._in_step = False
        self._parameters = _parameter_names(root) if isinstance(root, cst.FunctionDef) else set()

    def effects(self) -> _FunctionEffects:
        """Follow the function, and return its effects."""
        body = self._root.body.body if isinstance(self._root, cst.FunctionDef) else self._root.body
        self._block(body)
        self._effects.last = self._state
        if isinstance(self._root, cst.FunctionDef) and self._continues_step(self._root):
            for name, alone in self._state.alone.items():
                if self._is_visible(name):  # the step continues, in a graph with its gradients
                    self._hit(alone, None, before=False)
        return self._effects

    def _continues_step(self, function: cst.FunctionDef) -> bool:
        """Whether `function` is a part of a training step that continues after it."""
        whole = self._context.effects.of(function.body) & BOTH == BOTH
        return self._whole and not whole and self._facts.steps.trains(function.body)

    def _block(self, statements: Sequence[cst.CSTNode]) -> None:
        for statement in statements:
            inside = not self._whole and self._facts.steps.inside(statement)
            if inside is not self._in_step:
                self._state.end()
                self._in_step = inside
            self._statement(statement)

    def _if(self, node: cst.If) -> None:
        self._expression(node.test)
        before, outer = self._state.copy(), self._log
        logs, copied = [], []
        after: _State | None = None
        for branch in (node.body, node.orelse):
            self._state, self._log, self._copied = before.copy(), [], set()
            self._branch(branch)
            logs.append(self._log)
            copied.append(self._copied)
            if after is None:
                after = self._state
            elif branch is not None or not self._asks_for_several(node.test):
                after.join(self._state)
        assert after is not None
        if logs[0] == logs[1] and logs[0]:  # the replicas do the same
            after.alone = {k: a for k, a in after.alone.items() if k in before.alone}
        for name in copied[0] & copied[1]:
            after.alone.pop(name, None)
        self._copied = set()
        self._state, self._log = after, [*outer, *logs[0], *logs[1]]

    def _asks_for_several(self, test: cst.BaseExpression) -> bool:
        """Whether `test` asks whether there are several replicas: `world_size > 1`."""
        return OF_RUN.search(code(test)) is not None and not self._facts.guards.asks(test)

    def _branches(self, branches: Sequence[cst.CSTNode | None]) -> None:
        before, after = self._state, self._state.copy()
        for branch in branches:
            self._state = before.copy()
            self._branch(branch)
            after.join(self._state)
        self._state = after

    def _loop(self, node: cst.For | cst.While) -> None:
        before = self._state.copy()
        self._expression(node.iter if isinstance(node, cst.For) else node.test)
        if isinstance(node, cst.For):
            self._alias(node.target, node.iter)
        in_step = self._in_step
        for _ in range(2):  # what one turn leaves pending, the next one may meet
            self._block(node.body.body)
            if self._in_step is not in_step:
                self._state.end()
                self._in_step = in_step
        self._state.join(before)
        if node.orelse is not None:
            self._statement(node.orelse)

    def _with(self, node: cst.With) -> None:
        step = is_step(node, self._context)
        if step:
            self._state.end()
        for item in node.items:
            self._expression(item.item)
        marked, self._whole = self._whole, self._whole or step
        self._block(node.body.body)
        self._whole = marked
        if step:
            self._state.end()

    def _small(self, node: cst.CSTNode) -> None:
        if isinstance(node, cst.FunctionDef | cst.ClassDef):
            return
        self._expression(node)
        if isinstance(node, cst.Assign):
            for target in node.targets:
                self._assign(target.target, node.value, node)
        elif isinstance(node, cst.AnnAssign) and node.value is not None:
            self._assign(node.target, node.value, node)
        elif isinstance(node, cst.AugAssign):
            base = base_name(node.target)
            there = self._facts.values.on_device(node.target)
            if base is not None and there:
                self._operation(base, node, in_place=True)
        elif isinstance(node, cst.Return) and node.value is not None:
            self._bind(RESULT, node.value, node)

    def _assign(
        self, target: cst.BaseExpression, value: cst.BaseExpression, at: cst.CSTNode
    ) -> None:
        if isinstance(target, cst.Tuple | cst.List):
            for index, element in enumerate(target.elements):
                parts = value.elements if isinstance(value, cst.Tuple | cst.List) else ()
                part = parts[index].value if index < len(parts) else value
                self._assign(element.value, part, at)
        elif (tensor := computing.replaced_data(target)) is not None:
            if computing.computes(value, self._facts):
                self._operation(tensor, at, in_place=True)
        elif is_dotted_name(target):
            self._bind(base_name(target) or "", value, at)
        elif isinstance(target, cst.Subscript) and (base := base_name(target)) is not None:
            in_tensor = computing.is_written_by_index(target, self._facts)
            if in_tensor or computing.computes(value, self._facts):
                self._operation(base, at, in_place=True)

    def _bind(self, name: str, value: cst.BaseExpression, at: cst.CSTNode) -> None:
        """Record that `name` (or the result of the function) gets `value`."""
        self._state.flags.pop(name, None)
        if computing.is_flag(value, self._facts) and self._guard(at) is None:
            self._state.flags[name] = LoneOperation(at, None), self._state.shared
        guard: Guard | None = None
        if isinstance(value, cst.IfExp) and self._facts.guards.asks(value.test):
            guard = value
            same = code(value.body) == code(value.orelse)
            if not same and computing.computes(value, self._facts):
                self._add(name, LoneOperation(at, guard))
                return
        if isinstance(value, cst.Call) and (left := self._left(value)) is not None:
            self._add(name, left)
            return
        if computing.computes(value, self._facts):
            self._aliases.pop(name, None)
            of = [a for n, a in self._state.alone.items() if n in computing.named_in(value)]
            self._operation(name, at)
            if of and self._guard(at) is None:
                self._state.alone[name] = of[0]  # what is computed from it differs, too
            return
        guard = self._guard(at)
        if name and "." not in name:
            self._alias(cst.Name(name), value)
        if guard is None:
            self._state.alone.pop(name, None)
            self._state.computed.discard(name)
        elif name in self._state.computed and self._facts.values.on_device(value):
            self._copied.add(name)
            # An input of the graph in one branch, an operation in the other.
            self._add(name, LoneOperation(at, guard))
        else:
            self._copied.add(name)
            self._state.alone.pop(name, None)

    def _alias(self, target: cst.BaseExpression, value: cst.BaseExpression) -> None:
        """Record what the variables in `target` are parts of: `net` for `for p in net.parameters()`."""
        parts = target.elements if isinstance(target, cst.Tuple | cst.List) else ()
        if parts and isinstance(value, cst.Call) and code(value.func) in ("zip", "enumerate"):
            of = parts if code(value.func) == "zip" else parts[1:]
            for element, arg in zip(of, value.args, strict=False):
                self._alias(element.value, arg.value)
            return
        for name in nodes_of(target, cst.Name):
            self._aliases.pop(name.value, None)
            place = next(iter(v.places(value)), None)
            if place is not None and place != name.value:
                self._aliases[name.value] = place

    def _resolved(self, name: str) -> str:
        """Return the dotted name of the object that the variable `name` is a part of."""
        for _ in range(8):
            first, dot, rest = name.partition(".")
            if first not in self._aliases:
                break
            name = f"{self._aliases[first]}{dot}{rest}"
        return name

    def _operation(self, name: str, at: cst.CSTNode, in_place: bool = False) -> None:
        """Record a device operation that computes or writes the tensor `name`."""
        if in_place:
            name = self._resolved(name)
        self._log.append((name, code(at)))
        guard = self._guard(at)
        if guard is not None:
            self._copied.discard(name)
            if self._stays(name, guard):
                self._add(name, LoneOperation(at, guard))
            return
        if self._is_visible(name) and name != RESULT:
            self._effects.changes.add(name)
        self._state.computed.add(name)
        self._copied.discard(name)
        if not in_place:
            self._state.alone.pop(name, None)

    def _add(self, name: str, alone: LoneOperation) -> None:
        self._state.alone[name] = alone
        if self._state.shared is not None:
            self._hit(alone, self._state.shared, before=True)
        if self._state.open:
            self._effects.opened.append(alone)

    def _expression(self, node: cst.CSTNode) -> None:
        """Follow the calls in an expression, the inner ones first."""
        for call in reversed(list(nodes_of(node, cst.Call))):
            self._call(call)

    def _call(self, call: cst.Call) -> None:
        guard = self._guard(call)
        name = self._facts.names.of(call.func) or ""
        if v.ends_the_graph(call, self._facts) or name in WAITS:
            if guard is None:
                if self._ends_by_meeting(call):
                    self._meet(call)
                self._state.end()
        elif v.is_read(call, True, self._facts):
            self._read(call, guard)
        elif self._is_meeting(call):
            if guard is None:
                self._meet(call)
        elif functions := self._context.called(call):
            for function in functions[:3]:
                self._run(call, function, guard)
        elif Effect.BACKWARD in self._context.effects.of(call):
            if guard is None and (self._whole or self._in_step or self._is_backward(call)):
                self._meet(call)
            elif guard is None:
                self._state.end()  # a function of another file begins the step
        elif self._context.effects.meets(call) and not self._only_waits(call):
            if guard is None:
                self._meet_elsewhere(call)
        elif guard is None and self._gives_to_some(call):
            self._add(code(call.func), LoneOperation(call, None, elsewhere=True))
        else:
            self._write(call, guard)

    def _read(self, call: cst.Call, guard: Guard | None) -> None:
        """Record a read, by all replicas or by some of them."""
        names, fetched = computing.named_in(call), set(_fetched_by(call))
        for name in names:
            alone = self._state.alone.get(name)
            if alone is not None and (not alone.reads or (guard is None and name in fetched)):
                del self._state.alone[name]
        if guard is None:
            self._state.read(names)
            self._state.computed -= fetched  # they have their values now
        elif not self._whole and not self._in_step:  # the others: XLA305
            alone = LoneOperation(call, guard, reads=True)
            for name in sorted(fetched):
                if name in self._state.computed:
                    self._add(name, alone)
                elif name in self._parameters:
                    self._effects.read.setdefault(name, alone)

    def _write(self, call: cst.Call, guard: Guard | None) -> None:
        """Record what `call` writes on the device."""
        for written in computing.written_by(call, self._facts):
            self._operation(written, call, in_place=True)
        if v.kept_in(call, self._facts) is not None and isinstance(call.func, cst.Attribute):
            base = base_name(call.func.value)
            kept = [a.value for a in call.args if call.func.attr.value in KEEPING]
            if base is not None and any(computing.computes(a, self._facts) for a in kept):
                self._operation(base, call, in_place=True)
        elsewhere = guard is not None and changes_elsewhere(call, self._facts)
        if guard is not None and elsewhere and not computing.updates_copy(call, self._facts):
            self._add(code(call.func), LoneOperation(call, guard))

    def _gives_to_some(self, call: cst.Call) -> bool:
        """Whether `call` gives values to a function of another file that some replicas alone work in.

        The values are pending; or others are, and the function reads from the device, which runs these.
        """
        if not self._state.computed:
            return False
        for definition in self._context.run_by(call):
            if definition.path == self._context.file:
                continue
            arguments = [
                arg.value
                for index, arg in enumerate(call.args)
                if definition.is_used_by_some(
                    index, arg.keyword.value if arg.keyword is not None else None, arg.star
                )
            ]
            if has_read(definition):
                if any(self._facts.values.kind(value) is not Kind.HOST for value in arguments):
                    return True
            elif any(
                not self._state.computed.isdisjoint(names)
                for names in map(computing.named_in, arguments)
            ):
                return True
        return False

    def _is_backward(self, call: cst.Call) -> bool:
        """Whether `call` is `loss.backward()` itself, not a function of the project that trains."""
        return not self._context.run_by(call)

    def _is_meeting(self, call: cst.Call) -> bool:
        if v.is_collective(call, self._facts) or computing.is_wrapper(call, self._facts):
            return True
        if called(call, self._context) not in TENSORS:
            return False
        group = keyword(call, "group")
        return group is None or not makes_gloo_group(group.value, self._context)

    def _ends_by_meeting(self, call: cst.Call) -> bool:
        """Whether `call` runs a collective in the graph that is pending: `dist.reduce(x, 0)`."""
        return called(call, self._context) in v.ENDING

    def _only_waits(self, call: cst.Call) -> bool:
        """Whether the function that `call` runs only has a barrier in it, which ends the graph first."""
        definitions = self._context.run_by(call)
        return bool(definitions) and not any(map(has_collective, definitions))

    def _meet_elsewhere(self, call: cst.Call) -> None:
        """Record a function of another file that makes a collective, and may read the result itself."""
        shared, awaited = self._state.shared, set(self._state.awaited)
        self._meet(call)
        if all(map(has_read, self._context.run_by(call))):
            self._state.shared, self._state.awaited = shared, awaited

    def _meet(self, at: cst.Call) -> None:
        """Record a collective that all replicas reach."""
        for alone in self._state.alone.values():
            self._hit(alone, at, before=False)
        for name in computing.named_in(at) if self._is_meeting(at) else ():
            if name in self._state.flags:
                alone, earlier = self._state.flags[name]
                self._hit(alone, at, before=False)
                if earlier is not None:
                    self._hit(alone, earlier, before=True)
        if self._state.open and self._effects.meets is None:
            self._effects.meets = at
        name = self._facts.names.of(at.func) or ""
        at_once = name.startswith("shims.")
        if at_once and not self._whole and not self._in_step:
            self._state.end()  # the collectives of shims run at once
        else:
            self._state.shared = at
            written = v.written(at, self._facts) if self._is_meeting(at) else []
            self._state.awaited |= set(written) or {code(at)}

    def _run(self, call: cst.Call, function: cst.FunctionDef, guard: Guard | None) -> None:
        """Record the effects of the function of the script that `call` runs."""
        effects = self._graphs.effects_of(function)
        if guard is None and self._facts.guards.is_for_first(function):
            guard = function
        if guard is not None:
            for name in effects.changes:
                outer = self._outer(name, call, function)
                if outer is not None and self._stays(outer, guard):
                    self._log.append((outer, code(call)))
                    self._add(outer, LoneOperation(call, guard))
            return
        if self._state.shared is not None:
            for alone in effects.opened:
                self._hit(alone, self._state.shared, before=True)
        if effects.meets is not None:
            for alone in self._state.alone.values():
                self._hit(alone, call, before=False)
            if self._state.open and self._effects.meets is None:
                self._effects.meets = call
        if self._state.open:
            self._effects.opened += effects.opened
        if not effects.last.open:
            self._state.end()
        for name, alone in effects.last.alone.items():
            outer = self._outer(name, call, function)
            if outer is not None:
                self._state.alone[outer] = alone
        for name, alone in effects.read.items():
            if self._outer(name, call, function) in self._state.computed:
                self._add(self._outer(name, call, function) or "", alone)
        for name in effects.changes:
            if (outer := self._outer(name, call, function)) is not None:
                self._state.computed.add(outer)
                if self._is_visible(outer):
                    self._effects.changes.add(outer)
        if effects.last.shared is not None:
            self._state.shared = call
            self._state.awaited.add(code(call))

    def _left(self, call: cst.Call) -> LoneOperation | None:
        """Return the operation that only some replicas leave pending in the result of `call`."""
        results = (
            self._graphs.effects_of(function).last.alone.get(RESULT)
            for function in self._context.called(call)[:3]
        )
        return next((alone for alone in results if alone is not None), None)

    def _outer(self, name: str, call: cst.Call, function: cst.FunctionDef) -> str | None:
        """Return what `name` in `function` refers to at `call`; None for local variables of the function."""
        first, _, rest = name.partition(".")
        names = [parameter.name.value for parameter in function.params.params]
        if first in names[:1] and first in ("self", "cls"):
            receiver = call.func.value if isinstance(call.func, cst.Attribute) else None
            of = base_name(receiver) if receiver is not None else None
            return f"{of}.{rest}" if of is not None and rest else None
        arg = (bind(call, names[names[:1] in (["self"], ["cls"]) :]) or {}).get(first)
        if arg is not None:
            of = next(iter(v.places(arg.value)), None)
            return None if of is None else f"{of}.{rest}" if rest else of
        above = self._context.parent(function)
        nested = above is not None and self._context.function_around(above) is not None
        shared = first in self._global_names or (nested and first in ("self", "cls"))
        return name if shared and first not in names else None

    @property
    def _global_names(self) -> Mapping[str, object]:
        return {
            name.value: None
            for node in self._context.all_of(cst.Global, cst.Nonlocal)
            for item in node.names
            for name in (item.name,)
        }

    def _is_visible(self, name: str) -> bool:
        """Whether a tensor `name` is more than a local variable of the function."""
        first = name.partition(".")[0]
        return (
            name == RESULT
            or "." in name
            or first in self._parameters
            or first in self._global_names
            or isinstance(self._root, cst.Module)
        )

    def _stays(self, name: str, guard: Guard) -> bool:
        """Whether the tensor `name` also exists below the test of the rank."""
        if "." in name or name == RESULT or name in self._parameters:
            return True
        last = self._context.end(guard)
        first = self._context.position(guard)
        for mention in self._context.references(name):
            if self._context.function_around(mention) not in (self._root, None):
                continue
            at = self._context.position(mention)
            outside = at.line < first.line or at.line > last.line
            if isinstance(guard, cst.FunctionDef) or (outside and self._guard(mention) is None):
                return True
        return False

    def _guard(self, node: cst.CSTNode) -> Guard | None:
        """Return the guard that keeps some replicas from `node`, but not from the whole function."""
        guards = self._facts.guards
        guard = guards.around(node) or guards.around_what_some_hold(node)
        if guard is None or guard is self._root:
            return None
        inside = any(above is self._root for above in self._context.ancestors(guard))
        return guard if inside else None

    def _hit(self, alone: LoneOperation, collective: cst.CSTNode | None, before: bool) -> None:
        unknown = self._entered and alone in self._effects.opened
        hit = Uneven(alone, collective, before, unknown)
        self._graphs.hits.setdefault((id(alone.operation), before), hit)


def _fetched_by(call: cst.Call) -> Iterator[str]:
    """Yield the dotted names of the tensors that `call` fetches, which have no operation pending then.

    `x.item()`, `float(x)` and texts of one number run the graph of `x` and leave it pending, and
    `(x * 2).cpu()` does not fetch `x`.

    Source: torch_xla 2.9 (measured: the graph of the tensor before and after each read).
    """
    if isinstance(call.func, cst.Attribute) and call.func.attr.value in READ_METHODS:
        if call.func.attr.value != "item":
            yield from v.places(call.func.value)
    elif not isinstance(call.func, cst.Name) or call.func.value not in TO_NUMBER:
        for arg in call.args:
            for part in _items(arg.value):
                yield from v.places(part)


def _items(node: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """Yield the values of a dictionary, and any other expression itself."""
    if isinstance(node, cst.Dict):
        for element in node.elements:
            yield from _items(element.value)
    else:
        yield node


def _parameter_names(function: cst.FunctionDef) -> set[str]:
    params = function.params
    named = (*params.posonly_params, *params.params, *params.kwonly_params)
    return {parameter.name.value for parameter in named}

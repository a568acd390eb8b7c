"""Identity of an object: an expression is followed back to the calls that make it, through all files.

Names, attributes, items, returned tuples and the arguments of calls are followed. Two expressions may be the
same object if the same call made them.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from typing import Literal, NamedTuple

from migrate.catalogue.launchers import DDP
from migrate.catalogue.words import (
    FIRST_ARGUMENT,
    HOST_BUILTINS,
    HOST_ROOTS,
    MAKES_MODEL,
    MODULE_METHODS,
)
from migrate.model.calls.analysis import Analysis
from migrate.model.calls.callers import callers_of
from migrate.model.calls.devices import may_be_accelerator
from migrate.model.calls.kinds import UNKNOWN, ClassInstance, External
from migrate.model.calls.scopes import Class, Function, ModuleScope, Scope, ValueBinding
from migrate.model.objects.asked import is_module
from migrate.model.objects.meta_device import is_meta, is_to_meta
from migrate.model.objects.programs import programs_of

# Methods of a module that return the module.
SAME = MODULE_METHODS | {"to_empty", "share_memory", "type"}
MOVES = frozenset({"to", "cuda", "to_empty"})
# Modules of torch that represent the module they get.
WRAPPERS = re.compile(
    r"torch\.compile$|torch\.jit\.\w+$|.*(DataParallel|AveragedModel)$|copy\.(deep)?copy$"
)
# Those that have weights of their own, equal to those that they get.
COPIES = re.compile(r"copy\.deepcopy$|.*AveragedModel$")
# Modules of torch that only hold other modules.
HOLDERS = re.compile(r"torch\.nn\.(modules\.container\.)?(ModuleDict|ModuleList|Sequential)")
# Methods of a module that return modules in it.
OF_PARTS = frozenset({"children", "modules", "named_children", "named_modules"})
# Methods of containers that return their contents.
TAKEN = frozenset({"values", "items", "get", "pop", "copy", "popitem"})
BUILDS = frozenset({"__init__", "__post_init__"})
KEEPS = frozenset({"append", "add", "extend", "insert", "appendleft"})
MOST = 3000  # maximum number of steps back from one expression
DEEPEST = 4  # maximum number of calls remembered as the way into a function
CALLERS = 3  # maximum number of functions up to a `with torch.device(…)`

Call = tuple[ast.Call, Scope]
Position = tuple[int, int]


@dataclass(frozen=True)
class UnknownKey:
    """Key of an item that only the run knows: `parts[name]`.

    Args:
        text: the expression.
        scope: the function that binds the name, if it is a name.
    """

    text: str
    scope: Scope | None


How = Literal["value", "elements"] | int | tuple[str] | UnknownKey
Role = Literal["same", "whole", "part", "copied"]
# Nodes and scopes by identity, and the other parts of a step.
StepKey = tuple[object, ...]


class Entry(NamedTuple):
    """Item of what a call or a comprehension returns: `build()["net"]`.

    Args:
        call: the call, or the comprehension; None for an item of another item.
        key: the key or the number of the item; "elements" for all of them, or an unknown one.
    """

    call: ast.expr | None
    key: How


Chain = tuple[ast.Call | Entry, ...]
# A call, an item of its result, or a parameter or attribute of which nothing is known.
Site = ast.Call | Entry | tuple[object, str]


# First and last lines of blocks, by module.
Lines = dict[ModuleScope, list[tuple[int, int]]]


class CallArgument(NamedTuple):
    """Argument of a call for a parameter; unknown if `node` is None."""

    node: ast.expr | None
    scope: Scope
    call: ast.Call


class TraceStep(NamedTuple):
    """Expression on the way back to the origin.

    Args:
        node, scope: the expression.
        how: the expression itself, its elements, its element number `how`, its item of that key, or one item
            whose key is unknown.
        stack: the calls that led the search into the functions around.
        role: whether it is the object, something that contains the object, a part of it, or what the object
            is a deep copy of.
        before: only bindings before this position count in this scope.
        chain: the calls of project functions that returned the object, as far as it was not held anywhere,
            and the items of comprehensions.
        certain: whether a move on the way has happened for certain.
    """

    node: ast.expr
    scope: Scope
    how: How = "value"
    stack: tuple[Call, ...] = ()
    role: Role = "same"
    before: tuple[Scope, Position] | None = None
    certain: bool = True
    chain: Chain = ()

    @property
    def key(self) -> StepKey:
        """Key that identifies this step."""
        calls = tuple(id(call) for call, _ in self.stack)
        chain = tuple(call if isinstance(call, Entry) else id(call) for call in self.chain)
        return id(self.node), id(self.scope), self.how, calls, self.role, self.certain, chain


@dataclass
class Origin:
    """Calls that make an object.

    Args:
        sites, wholes, parts: the calls that make the object, its containers, and its contents.
        originals: the calls that make what it is a deep copy of: moves count only where they come before.
        chains: for each of these calls the calls of project functions that lead to it: two calls of one
            function make two objects.
        unknown: the parameters (a function and a name) with unknown arguments.
        chosen: the unknown keys of the items on the way: the object is one of several.
        moved: whether it is certainly created on an accelerator, or moved on the way here.
        on_meta: whether it is created on the device "meta", or moved there on the way here.
    """

    sites: set[Site] = field(default_factory=set)
    wholes: set[Site] = field(default_factory=set)
    parts: set[Site] = field(default_factory=set)
    originals: set[Site] = field(default_factory=set)
    chains: dict[Site, set[Chain]] = field(default_factory=dict)
    unknown: set[tuple[Function, str]] = field(default_factory=set)
    chosen: set[UnknownKey] = field(default_factory=set)
    moved: bool = False
    on_meta: bool = False

    def covers(self, other: Origin) -> bool:
        """Whether an earlier operation on this object affects all of `other`, or what that is a copy of."""
        own = self.sites | self.parts
        # An unknown item: only what is done to all items is done to it.
        is_whole = not self.chosen and (not other.chosen or other.sites <= own)
        if not is_whole and not self.chosen & other.chosen:
            return False
        others = other.sites | other.wholes | other.originals
        return self._has(other, own, others, _is_item_of_all) or self._is_same_part(other)

    def touches(self, other: Origin) -> bool:
        """Whether an operation on this object affects `other`, or a part of it."""
        own = self.sites | self.parts
        return (
            self._has(other, own, other.sites | other.wholes, _may_be_item)
            or self._has(other, self.wholes, other.sites, _may_be_item)
            or self._is_same_part(other)
        )

    def _is_same_part(self, other: Origin) -> bool:
        """Whether both are the attribute of one name of an object that a library returned."""
        names = {name for site in self.sites if (name := _attribute_of(site))}
        if any(isinstance(s, Entry) and s.call in self.wholes for s in other.sites):
            return any(isinstance(s, Entry) and s.key in {(n,) for n in names} for s in other.sites)
        return not names.isdisjoint(map(_attribute_of, other.sites)) and self._has(
            other, self.wholes, other.wholes, _may_be_item
        )

    def _has(
        self,
        other: Origin,
        own: set[Site],
        others: set[Site],
        meets: Callable[[How, Site, set[Site]], bool],
    ) -> bool:
        """Whether a site is in both, by the same calls; `meets` compares the items of what a call returns."""
        pairs = [(site, site) for site in own & others]
        if not pairs:
            by_call = defaultdict(list)
            for site in others:
                by_call[_call_of(site)].append(site)
            pairs = [
                (site, theirs)
                for site in own
                for theirs in by_call.get(_call_of(site), ())
                if not isinstance(site, Entry) or meets(site.key, theirs, others)
            ]
        return any(
            _agree(chain, another)
            for site, theirs in pairs
            for chain in self.chains.get(site, [()])
            for another in other.chains.get(theirs, [()])
        )

    def add(self, other: Origin) -> None:
        """Add what another expression of this object says of it."""
        self.sites |= other.sites
        self.wholes |= other.wholes
        self.parts |= other.parts
        self.originals |= other.originals
        for site, chains in other.chains.items():
            self.chains.setdefault(site, set()).update(chains)
        self.unknown |= other.unknown
        self.chosen |= other.chosen
        self.moved |= other.moved
        self.on_meta |= other.on_meta


class _Expansion(NamedTuple):
    """Result of one step: the next steps with their keys, and what it says of the object, if anything."""

    steps: list[tuple[StepKey, TraceStep]]
    origin: Origin | None


class Objects:
    """Objects of a project.

    Args:
        analysis: of the project.
    """

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis
        self._evaluator = analysis.evaluator
        self._known: dict[StepKey, Origin] = {}
        # Most expressions are reached from many others.
        self._expansions: dict[tuple[StepKey, tuple[Scope, Position] | None], _Expansion] = {}

    def origin(
        self,
        node: ast.expr,
        scope: Scope,
        stack: tuple[Call, ...] = (),
        before: Position | None = None,
    ) -> Origin:
        """Return the origin of `node`, as seen in `scope` at the position `before`."""
        start = TraceStep(
            node, scope, stack=stack, before=(scope, before) if before is not None else None
        )
        key = (*start.key, before)
        if key not in self._known:
            self._known[key] = self._follow(start)
        return self._known[key]

    def _follow(self, start: TraceStep) -> Origin:
        origin = Origin()
        seen: set[StepKey] = set()
        waiting = [(start.key, start)]
        while waiting and len(seen) < MOST:
            key, step = waiting.pop()
            if key not in seen:
                seen.add(key)
                expansion = self._expansions.get((key, step.before)) or self._expand(key, step)
                waiting += expansion.steps
                if expansion.origin is not None:
                    origin.add(expansion.origin)
        return origin

    def _expand(self, key: StepKey, step: TraceStep) -> _Expansion:
        """Return what `step` tells, which does not depend on the way to it."""
        origin = Origin()
        steps = [(after.key, after) for after in self._back(step, origin)]
        expansion = _Expansion(steps, origin if origin != Origin() else None)
        self._expansions[key, step.before] = expansion
        return expansion

    def arguments(self, function: Function, name: str) -> list[CallArgument]:
        """Return the arguments that the calls of the project pass for a parameter."""
        return self._arguments.get((function, name), [])

    def is_move(self, call: ast.Call, scope: Scope) -> bool:
        """Whether `call` moves its receiver to an accelerator, or to an unknown device."""
        function = call.func
        if not isinstance(function, ast.Attribute) or function.attr not in MOVES:
            return False
        return programs_of(self._analysis).may_be_move(call, scope)

    def replaces_on_cuda(self, move: ast.Call, scope: Scope) -> bool:
        """Whether the move of a model replaces its parameters on CUDA as well: from or to "meta"."""
        if self._is_to_meta(move, scope):
            return True
        function = move.func
        if not isinstance(function, ast.Attribute) or function.attr != "to_empty":
            return False  # `.to` raises for a module on "meta"
        return self.origin(function.value, scope, (), end(move)).on_meta

    def _back(self, step: TraceStep, origin: Origin) -> Iterator[TraceStep]:
        match step.node:
            case ast.Name(id=name):
                bindings = list(self._evaluator.bindings_of(name, step.scope))
                yield from self._bound(bindings, step, origin)
            case ast.Attribute():
                yield from self._attribute(step.node, step, origin)
            case ast.Call():
                yield from self._call(step.node, step, origin)
            case ast.Subscript(value=container, slice=index):
                self._choose(step, 2, origin)
                chain = step.chain
                if isinstance(step.how, int | tuple):
                    chain = (*chain, Entry(None, step.how))[-DEEPEST:]
                how = self._key(index, step.scope)
                yield step._replace(node=container, how=how, chain=chain)
            case ast.IfExp(body=one, orelse=other) | ast.BinOp(left=one, right=other):
                yield step._replace(node=one)
                yield step._replace(node=other)
            case ast.BoolOp(values=parts):
                yield from (step._replace(node=part) for part in parts)
            case ast.NamedExpr(value=value) | ast.Await(value=value) | ast.Starred(value=value):
                yield step._replace(node=value)
            case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
                self._choose(step, len(parts), origin)
                yield from self._displayed(parts, step)
            case ast.Dict(keys=keys, values=values):
                self._choose(step, len(values), origin)
                for key, value in zip(keys, values, strict=True):
                    known = isinstance(key, ast.Constant) and isinstance(step.how, tuple)
                    if not known or (key.value,) == step.how:  # type: ignore[union-attr]
                        yield step._replace(node=value, how="value")
            case (
                ast.ListComp(elt=part)
                | ast.SetComp(elt=part)
                | ast.GeneratorExp(elt=part)
                | ast.DictComp(value=part)
            ):
                self._choose(step, 2, origin)
                chain = step.chain
                if isinstance(step.how, int | tuple):  # each item is made by a turn of its own
                    chain = (*chain, Entry(step.node, step.how))[-DEEPEST:]
                yield step._replace(node=part, how="value", chain=chain)

    def _key(self, index: ast.expr, scope: Scope) -> How:
        """Return how `index` takes an item; the variable of a loop takes one after the other."""
        if isinstance(index, ast.Slice):
            return "elements"
        if isinstance(index, ast.Constant) and isinstance(index.value, int | str):
            return index.value if isinstance(index.value, int) else (index.value,)
        number = ast.unparse(index)
        if number[:1] == "-" and number[1:].isdigit():
            return int(number)
        if not isinstance(index, ast.Name):
            return UnknownKey(number, None)
        bindings = list(self._evaluator.bindings_of(index.id, scope))
        if any(binding.kind == "element" for binding in bindings):
            return "elements"
        return UnknownKey(number, bindings[0].scope if bindings else None)

    def _choose(self, step: TraceStep, count: int, origin: Origin) -> None:
        """Note that the object is one of `count`, by a key that only the run knows."""
        if count > 1 and isinstance(step.how, UnknownKey):
            origin.chosen.add(step.how)

    def _displayed(self, parts: list[ast.expr], step: TraceStep) -> Iterator[TraceStep]:
        starred = any(isinstance(part, ast.Starred) for part in parts)
        if isinstance(step.how, int) and not starred and -len(parts) <= step.how < len(parts):
            yield step._replace(node=parts[step.how], how="value")
            return
        for part in parts:
            if isinstance(part, ast.Starred):
                yield step._replace(node=part.value, how="elements")
            else:
                yield step._replace(node=part, how="value")

    def _bound(
        self, bindings: list[ValueBinding], step: TraceStep, origin: Origin
    ) -> Iterator[TraceStep]:
        here = [binding for binding in bindings if not self._is_later(binding, step)]
        text = ast.unparse(step.node)
        if step.how != "value":
            added = self._kept.get((step.scope.top, text), ())
            if isinstance(step.how, int):  # in which order they were added is unknown
                self._choose(step._replace(how=UnknownKey(str(step.how), None)), len(added), origin)
            self._choose(step, len(added), origin)
            for kept, scope in added:
                yield TraceStep(kept, scope, role=step.role, certain=False)
            yield from self._put_at(step)
        for binding in here or bindings:
            yield from self._binding(binding, step, origin)
        if not bindings:
            found_in = _owner(step.node, step.scope)
            _add(origin, step.role, (found_in, text))

    def _put_at(self, step: TraceStep) -> Iterator[TraceStep]:
        """Yield the values assigned to the item: `models["g"] = net`."""
        if isinstance(step.how, tuple):
            for container, binding in step.scope.top.assigned.get(step.how[0], ()):
                if binding.value is not None and ast.dump(container) == ast.dump(step.node):
                    yield TraceStep(binding.value, binding.scope, role=step.role, certain=False)

    def _is_later(self, binding: ValueBinding, step: TraceStep) -> bool:
        if step.before is None or binding.value is None:
            return False
        scope, position = step.before
        return binding.scope is scope and end(binding.value) >= position

    def _binding(
        self, binding: ValueBinding, step: TraceStep, origin: Origin
    ) -> Iterator[TraceStep]:
        near = binding.scope is step.scope
        stack = step.stack if near else ()
        match binding.kind:
            case "param":
                assert isinstance(binding.scope, Function)
                yield from self._parameter(
                    binding.scope, binding.name, step._replace(stack=stack), origin
                )
            case "value" | "element" | "item" if binding.value is not None:
                how = step.how
                if binding.kind == "element":
                    how = "elements"
                elif binding.kind == "item":
                    how = binding.index
                built = not isinstance(binding.scope, Function) or binding.scope.name in BUILDS
                named = isinstance(step.node, ast.Name)
                yield TraceStep(
                    binding.value,
                    binding.scope,
                    how,
                    stack,
                    step.role,
                    (binding.scope, end(binding.value)) if near else None,
                    step.certain and (near or built or named),
                    step.chain if named and near and binding.name in step.scope.bindings else (),
                )
            case "scope" if isinstance(binding.scope, Function):
                if binding.scope.is_a("property", "cached_property"):
                    for value in binding.scope.returns:
                        yield TraceStep(
                            value, binding.scope, step.how, role=step.role, certain=False
                        )

    def _parameter(
        self, function: Function, name: str, step: TraceStep, origin: Origin
    ) -> Iterator[TraceStep]:
        last = step.stack[-1] if step.stack else None
        chain = step.chain[:-1] if last is not None and step.chain[-1:] == last[:1] else ()
        if function.owner is not None and function.is_bound and function.parameters[:1] == [name]:
            receiver = last[0].func if last is not None else None
            if (
                last is not None
                and isinstance(receiver, ast.Attribute)
                and not _is_super(receiver.value)
                and function in self._analysis.running[last[0]].functions
            ):
                yield TraceStep(
                    receiver.value, last[1], step.how, step.stack[:-1], step.role, chain=chain
                )
            elif last is not None and function.name in BUILDS and isinstance(receiver, ast.Name):
                _add(origin, step.role, last[0], chain)
            else:
                self._instances(function.owner, step, origin)
            return
        arguments = self._arguments.get((function, name), [])
        led = [argument for argument in arguments if last is not None and argument.call is last[0]]
        stack = step.stack[:-1] if led else ()
        for argument in led or arguments:
            if argument.node is not None:
                before = argument.scope, end(argument.call)
                yield TraceStep(
                    argument.node,
                    argument.scope,
                    step.how,
                    stack,
                    step.role,
                    before,
                    step.certain,
                    chain if led else (),
                )
        default, _ = function.declared.get(name, (None, []))
        has_default = default is not None and not isinstance(default, ast.Constant)
        if default is not None and has_default:
            yield TraceStep(default, function.parent or function, step.how, role=step.role)
        if not has_default and not any(argument.node is not None for argument in led or arguments):
            origin.unknown.add((function, name))
            _add(origin, step.role, (function, name))

    def _instances(self, owner: Class, step: TraceStep, origin: Origin) -> None:
        sites: list[Site] = []
        for related in self._evaluator.relatives(owner, exact=False):
            sites += self._constructed.get(related, ())
        for site in sites or [(owner, "self")]:
            _add(origin, step.role, site)

    def _attribute(
        self, node: ast.Attribute, step: TraceStep, origin: Origin
    ) -> Iterator[TraceStep]:
        receiver, name = node.value, node.attr
        members = list(self._evaluator.members_of(receiver, name, step.scope))
        fields = [
            argument
            for value in self._evaluator.values(receiver, step.scope)
            if isinstance(value, ClassInstance)
            for related in self._evaluator.relatives(value.of, value.exact)
            for argument in self._arguments.get((related, name), ())
            if argument.node is not None
        ]
        for attribute in fields:
            assert attribute.node is not None
            yield TraceStep(
                attribute.node,
                attribute.scope,
                step.how,
                (),
                step.role,
                (attribute.scope, end(attribute.call)),
                step.certain,
            )
        if name in ("module", "_orig_mod") and not members and not fields:
            yield step._replace(node=receiver)
            return
        if step.role != "part" and self._may_be_module(receiver, step.scope):
            role: Role = "copied" if step.role == "copied" else "whole"
            yield step._replace(node=receiver, how="value", role=role)
        if members or not fields:
            yield from self._bound(members, step, origin)

    def _may_be_module(self, node: ast.expr, scope: Scope) -> bool:
        """Whether `node` is a module, or what a library returns, or unknown.

        Whatever such an object is, it moves with its parts: `net = parts["net"]`, `net.cuda()`, `net.head`.
        """
        values = self._evaluator.values(node, scope) - {UNKNOWN}
        others = [value for value in values if not isinstance(value, External)]
        return not others or is_module(node, scope, self._analysis)

    def _call(self, node: ast.Call, step: TraceStep, origin: Origin) -> Iterator[TraceStep]:
        function, scope = node.func, step.scope
        ran = self._analysis.running.get(node)
        functions = ran.functions if ran is not None else []
        values = self._evaluator.values(function, scope)
        if isinstance(function, ast.Attribute):
            of_module = is_module(function.value, scope, self._analysis)
            if function.attr in SAME and (not functions or of_module):
                if step.certain and step.role != "part" and self.is_move(node, scope):
                    origin.moved = True
                origin.on_meta |= self._is_to_meta(node, scope)
                yield step._replace(node=function.value)
                return
            if function.attr in TAKEN and not functions:
                how: How = "elements"
                if function.attr in ("get", "pop") and node.args:
                    how = self._key(node.args[0], scope)
                yield step._replace(node=function.value, how=how)
                return
            if function.attr in OF_PARTS and not functions and step.role != "part":
                role: Role = "copied" if step.role == "copied" else "whole"
                yield step._replace(node=function.value, how="value", role=role)
                return
        if any(isinstance(value, Class) for value in values):
            self._made(node, step, origin)
            yield from self._given(node, step, "part")
            return
        if functions:
            stack = (*step.stack, (node, scope))[-DEEPEST:]
            for callee in functions:
                # A decorator may keep what the function returned before.
                chain = () if callee.decorators else (*step.chain, node)[-DEEPEST:]
                for returned in callee.returns:
                    yield TraceStep(
                        returned, callee, step.how, stack, step.role, None, step.certain, chain
                    )
            return
        yield from self._of_library(node, step, origin)

    def _of_library(self, node: ast.Call, step: TraceStep, origin: Origin) -> Iterator[TraceStep]:
        values = self._evaluator.values(node.func, step.scope)
        names = [value.name for value in values if isinstance(value, External)]
        last = getattr(node.func, "id", "")
        if not names and last in HOST_BUILTINS | FIRST_ARGUMENT | {"enumerate", "dict", "vars"}:
            if last == "dict" and isinstance(step.how, tuple):
                entries = [k.value for k in node.keywords if (k.arg,) == step.how]
                if entries:
                    yield step._replace(node=entries[0], how="value")
                    return
            self._choose(step, 2, origin)
            for arg in (*node.args, *(keyword.value for keyword in node.keywords)):
                yield step._replace(node=arg, how="elements")
            return
        self._made(node, step, origin)
        wraps = any(WRAPPERS.match(name) for name in names)
        if any(HOLDERS.fullmatch(name) for name in names) and _holds_one(node):
            yield from self._given(node, step, step.role)  # it has no weights of its own
        elif not wraps and any(MAKES_MODEL.match(name) for name in names):
            yield from self._given(node, step, "part")
        elif wraps or not any(name.split(".")[0] in HOST_ROOTS | {"torch"} for name in names):
            if isinstance(step.how, int):  # model, optimizer = amp.initialize(model, optimizer)
                if 0 <= step.how < len(node.args):
                    yield step._replace(node=node.args[step.how], how="value")
            elif not any(COPIES.match(name) for name in names):
                yield from self._given(node, step, step.role)
            elif step.role != "part":
                yield from self._given(node, step, "copied")

    def _given(self, node: ast.Call, step: TraceStep, role: Role) -> Iterator[TraceStep]:
        if role == "part" and step.role in ("whole", "copied"):
            return
        for arg in (*node.args, *(keyword.value for keyword in node.keywords)):
            how: How = "elements" if isinstance(arg, ast.List | ast.Tuple | ast.Dict) else "value"
            if isinstance(step.how, tuple):
                how = step.how  # the item of this name: `prepare({"net": net})["net"]`
            yield step._replace(node=arg, how=how, role=role)

    def _made(self, node: ast.Call, step: TraceStep, origin: Origin) -> None:
        self._choose(step, 2, origin)
        how: How = "elements" if isinstance(step.how, UnknownKey) else step.how
        _add(origin, step.role, node if how == "value" else Entry(node, how), step.chain)
        if step.role != "part" and self._is_made_there(node, step):
            origin.moved = True
        if step.role != "part" and self._is_within(node, step.scope, self._meta_lines, step.stack):
            origin.on_meta = True

    def _is_made_there(self, node: ast.Call, step: TraceStep) -> bool:
        """Whether `node` creates its object on an accelerator."""
        scope = step.scope
        for keyword in node.keywords:
            if keyword.arg in ("device", "device_map"):
                return may_be_accelerator(self._evaluator.values(keyword.value, scope))
            if keyword.arg is None:  # `Net(**options)`
                held = self._evaluator.contents.at_key(keyword.value, "device", scope)
                if any(may_be_accelerator(self._evaluator.values(*item)) for item in held):
                    return True
        return self._by_default or self._is_within(node, scope, self._device_lines, step.stack)

    def _is_to_meta(self, move: ast.Call, scope: Scope) -> bool:
        """Whether `move` moves its receiver to the device "meta", which few files name."""
        return b"meta" in scope.top.module.data and is_to_meta(move, scope, self._analysis)

    def _is_within(
        self,
        node: ast.Call,
        scope: Scope,
        lines: Lines,
        stack: tuple[Call, ...] = (),
        depth: int = CALLERS,
    ) -> bool:
        """Whether `node`, or the last call of `stack` that leads to it, is in `lines`.

        Where the stack does not lead to it, each of its callers has to.
        """
        here = lines.get(scope.top, ())
        if any(first <= node.lineno <= last for first, last in here):
            return True
        if not isinstance(scope, Function) or not depth or not lines:
            return False
        if stack and scope in self._analysis.running[stack[-1][0]].functions:
            return self._is_within(*stack[-1], lines, stack[:-1], depth - 1)
        callers = callers_of(self._analysis).get(scope, ())
        return bool(callers) and all(
            self._is_within(call, at, lines, (), depth - 1)
            for call, at in callers
            if at is not scope
        )

    @cached_property
    def _device_lines(self) -> Lines:
        """Lines below each `with torch.device(…)` of an accelerator."""
        # `with torch.cuda.device(0)` names the current GPU: nothing is made there.
        return self._lines_below(
            b"device", lambda node, scope: may_be_accelerator(self._evaluator.values(node, scope))
        )

    @cached_property
    def _meta_lines(self) -> Lines:
        """Lines below each `with torch.device("meta")`."""
        return self._lines_below(b"meta", partial(is_meta, analysis=self._analysis))

    def _lines_below(self, word: bytes, is_entered: Callable[[ast.expr, Scope], bool]) -> Lines:
        lines: dict[ModuleScope, list[tuple[int, int]]] = defaultdict(list)
        for top in self._analysis.scopes.values():
            if word not in top.module.data:
                continue
            for node in top.module.nodes:
                if isinstance(node, ast.With):
                    scope = self._scope_of(node, top)
                    for item in node.items:
                        if is_entered(item.context_expr, scope):
                            lines[top].append((node.lineno, node.end_lineno or node.lineno))
        return dict(lines)

    def _scope_of(self, node: ast.With, top: ModuleScope) -> Scope:
        for root in top.all_roots:
            for region in self._analysis.regions(root):
                for call, scope in (*region.entered, *region.calls):
                    if node.lineno <= call.lineno <= (node.end_lineno or 0):
                        return scope
        return top

    @cached_property
    def _by_default(self) -> bool:
        """Whether the project creates tensors and modules on an accelerator by default."""
        return any(
            call.args
            and b"set_default_device" in scope.top.module.data
            and External("torch.set_default_device") in self._evaluator.values(call.func, scope)
            and may_be_accelerator(self._evaluator.values(call.args[0], scope))
            for call, scope in self._evaluator.calls()
        )

    @cached_property
    def _arguments(self) -> dict[tuple[Function | Class, str], list[CallArgument]]:
        arguments: dict[tuple[Function | Class, str], list[CallArgument]] = defaultdict(list)
        for call, all_passed in self._analysis.passed.items():
            for to, name, _, node, scope in all_passed:
                arguments[to, name].append(CallArgument(node, scope, call))
        return dict(arguments)

    @cached_property
    def _constructed(self) -> dict[Class, list[ast.Call]]:
        calls: dict[Class, list[ast.Call]] = defaultdict(list)
        for call, scope in self._evaluator.calls():
            for value in self._evaluator.values(call.func, scope):
                if isinstance(value, Class):
                    calls[value].append(call)
        return dict(calls)

    @cached_property
    def _kept(self) -> dict[tuple[ModuleScope, str], list[tuple[ast.expr, Scope]]]:
        """Values added to containers, by the text of the container: `models.append(net)`."""
        values: dict[tuple[ModuleScope, str], list[tuple[ast.expr, Scope]]] = defaultdict(list)
        for call, scope in self._evaluator.calls():
            if isinstance(call.func, ast.Attribute) and call.func.attr in KEEPS:
                text = ast.unparse(call.func.value)
                values[scope.top, text] += [(arg, scope) for arg in call.args]
        return dict(values)


@lru_cache(maxsize=2)
def objects_of(analysis: Analysis) -> Objects:
    """Return the objects of an analyzed project, computed once for all files."""
    return Objects(analysis)


def end(node: ast.expr) -> Position:
    """Return the end of `node`: of two calls, the one that ends first runs first."""
    return node.end_lineno or 0, node.end_col_offset or 0


def _agree(chain: Chain, other: Chain) -> bool:
    """Whether the calls that lead to an object may be the same: the ends of what is known of them are."""
    known = min(len(chain), len(other))
    return not known or chain[-known:] == other[-known:]


def _add(origin: Origin, role: Role, site: Site, chain: Chain = ()) -> None:
    origin.chains.setdefault(site, set()).add(chain)
    of = {"same": origin.sites, "whole": origin.wholes, "part": origin.parts}
    of.get(role, origin.originals).add(site)


def _holds_one(node: ast.Call) -> bool:
    """Whether a container gets one module: `ModuleDict({"net": net})`, `Sequential(net)`."""
    if len(node.args) != 1 or node.keywords:
        return False
    match node.args[0]:
        case ast.Starred() | ast.ListComp() | ast.GeneratorExp() | ast.DictComp():
            return False
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return len(parts) == 1 and not isinstance(parts[0], ast.Starred)
        case ast.Dict(keys=keys):
            return len(keys) == 1 and keys[0] is not None
    return getattr(node.func, "attr", getattr(node.func, "id", "")) == "Sequential"


def _call_of(site: Site) -> object:
    return site.call if isinstance(site, Entry) else site


def _attribute_of(site: Site) -> str:
    """Return the name of an attribute of which nothing else is known, or an empty string."""
    if isinstance(site, ast.Call | Entry):
        return ""
    return site[1].rpartition(".")[2] if "." in site[1] else ""


def _is_item_of_all(key: How, other: Site, others: set[Site]) -> bool:
    """Whether what is done to the items `key` of a call's result is done to all of `other`."""
    if key == "elements":
        return True
    if isinstance(other, Entry):
        return key == other.key
    # The whole, of which an attribute may be the item: `parts["net"]` is `parts.net`.
    return isinstance(key, tuple) and key[0] in map(_attribute_of, others)


def _may_be_item(key: How, other: Site, others: set[Site]) -> bool:
    """Whether what is done to the items `key` of a call's result may affect `other`."""
    if not isinstance(other, Entry) or "elements" in (key, other.key) or key == other.key:
        return True
    numbers = isinstance(key, int) and isinstance(other.key, int)
    return numbers and (key < 0) != (other.key < 0)  # type: ignore[operator]


def _is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") == "super"


def _owner(node: ast.expr, scope: Scope) -> object:
    """Return the owner of an unknown name or attribute: the class for `self.x`, otherwise the file."""
    around: Scope | None = scope
    while around is not None:
        if isinstance(around, Function) and around.owner is not None:
            return around.owner
        around = around.parent
    return scope if isinstance(node, ast.Name) else scope.top


def placed_models(analysis: Analysis, top: ModuleScope) -> Iterator[ast.Call]:
    """Yield the calls in a file that wrap a model which an accelerator holds: `DDP(Net(device="cuda"))`.

    The model is made there, or moved by the project on its way to the call, in any file.
    """
    if b"DistributedDataParallel" not in top.module.data:
        return
    for call, scope in analysis.calls_in(top):
        values = analysis.evaluator.values(call.func, scope)
        if not any(isinstance(value, External) and value.name in DDP for value in values):
            continue
        named = [keyword.value for keyword in call.keywords if keyword.arg == "module"]
        model = next(iter((*call.args[:1], *named)), None)
        if model is not None and objects_of(analysis).origin(model, scope, (), end(call)).moved:
            yield call

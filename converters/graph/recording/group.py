"""Regrouping of the flat graph of `torch.export` into the calls of modules that it was recorded
from.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch import fx
from torch.export.graph_signature import InputKind

from converters.graph.ir import (
    Call,
    Fact,
    Frame,
    Free,
    Given,
    Graph,
    Held,
    Op,
    Ref,
    Taken,
    references,
    size_of,
    uses,
)
from converters.graph.recording.drawn import draws
from converters.graph.recording.gradients import stops
from converters.graph.recording.known import Known
from converters.graph.recording.libraries import own_files
from converters.graph.recording.nodes import frames_of, name_of, needed
from converters.graph.recording.shared import first_names, first_paths
from converters.graph.recording.simplify import same_as
from converters.graph.recording.trace import MARK, GraphError, OutputLeaf, Trace
from converters.host_draws import DRAWN

# An operator that returns its tensor without the gradient.
STOP = "aten.detach.default"
# Operators that do not affect values: torch's checks, and arithmetic of sizes, which sizes' symbols
# hold.
_DROPPED = re.compile(
    r"aten\._assert|aten\.sym_|_operator\.|aten\._check|math\.|torch\.sym|aten\.sym_constrain"
)

# An attention that drops weights by its arguments: a second one drops other weights.
_ATTENTION = re.compile(r"aten\.\w*scaled_dot_product")


def group(trace: Trace) -> Graph:
    """The recorded graph as nested calls.

    Raises:
        GraphError: a node has no form here (control flow, a side effect).
    """
    return _Group(trace).graph()


@dataclass(eq=False)
class _Open:
    """A call whose nodes are being collected."""

    path: str
    above: _Open | None = None
    number: int = 0
    items: list[Any] = field(default_factory=list)
    arguments: list[Given] = field(default_factory=list)
    taken: list[Taken] = field(default_factory=list)
    frames: tuple[Frame, ...] = ()
    method: str = "forward"
    inner: dict[str, _Open] = field(default_factory=dict)
    computed: dict[Any, Any] = field(default_factory=dict)


class _Group:
    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.numbers: dict[fx.Node, int] = {}
        self.values: dict[fx.Node, Any] = {}
        self.facts: dict[int, Fact] = {}
        self.held: dict[str, Fact] = {}
        self.inputs: list[tuple[str, int]] = []
        # Inner number of a call's argument → the call, and the value.
        self.passed: dict[int, tuple[_Open, Any]] = {}
        self.count = 0
        self.first = first_names(trace.module)
        self.paths = first_paths(trace.module)
        self.own = own_files(trace.module)
        self.known = Known(trace.program, trace.known)

    def graph(self) -> Graph:
        program = self.trace.program
        self._placeholders()
        root = _Open("")
        wanted = needed(program.graph)
        stopped = stops(program)
        for node in program.graph.nodes:
            if node.op == "call_function" and node in wanted:
                self._node(node, root)
                if node in stopped:
                    self._stop(node, root)
        outputs = self._outputs(root)
        closed = _close(root)
        return Graph(
            tuple(self.inputs),
            _with_free(closed, self.inputs, outputs),
            outputs,
            self.facts,
            {name: value.tolist() for name, value in self.trace.fixed.items()},
            {**self._lifted(), **self.known.constants},
            None if self.trace.same_dtype else self.trace.narrow,
        )

    def _lifted(self) -> dict[str, torch.Tensor]:
        """Tensors that a forward makes from numbers: each recording numbers its own."""
        modules = dict(self.trace.module.named_modules(remove_duplicate=False))
        lifted = {}
        for target, tensor in self.trace.program.constants.items():
            key = target.removeprefix("model.")
            owner, _, name = key.rpartition(".")
            if isinstance(tensor, torch.Tensor) and not hasattr(modules.get(owner), name):
                lifted[key] = tensor
        return lifted

    def _placeholders(self) -> None:
        program = self.trace.program
        nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
        # In order: torch.export writes names in lower case.
        names = iter([name for name in self.trace.inputs if name not in self.trace.fixed])
        for spec in program.graph_signature.input_specs:
            node = nodes[spec.arg.name]
            if spec.kind is InputKind.USER_INPUT:
                self.inputs.append((next(names), self._new(node)))
            else:
                key = str(spec.target).removeprefix("model.")
                key = self.first.get(key, key)
                self.values[node] = Held(key)
                if isinstance(node.meta.get("val"), torch.Tensor):
                    self.held[key] = self._fact(node.meta["val"])
        for name, value in self.trace.fixed.items():
            self.inputs.append((name, self.count))
            self.facts[self.count] = Fact(tuple(value.shape), value.dtype)
            self.count += 1
        self.inputs.sort(key=lambda entry: self.trace.inputs.index(entry[0]))

    def _new(self, node: fx.Node, value: Any = None) -> int:
        number, self.count = self.count, self.count + 1
        self.facts[number] = self._fact(node.meta["val"] if value is None else value)
        self.values.setdefault(node, Ref(number))
        return number

    def _fact(self, value: Any) -> Fact:
        return Fact(tuple(self._side(side) for side in value.shape), value.dtype)

    def _side(self, side: Any) -> int | Free:
        return size_of(side)

    def _node(self, node: fx.Node, root: _Open) -> None:
        name = name_of(node.target)
        if self.known.takes(node) and name != MARK:
            return
        if isinstance(node.meta.get("val"), torch.SymInt | int):
            self.values[node] = size_of(node.meta["val"])
            return
        if isinstance(node.meta.get("val"), torch.SymFloat | float | torch.SymBool | bool):
            value = node.meta["val"]
            if not isinstance(value, float | bool):
                if all(isinstance(end.meta.get("val"), torch.SymInt) for end in _ends(node)):
                    return  # a step of computing a size, which states its formula itself
                whole = _whole(value)
                if whole is not None:
                    self.values[node] = whole
                    return
                raise GraphError(f"{name}: a number that depends on the inputs' shapes", _SHAPES)
            self.values[node] = value
            return
        if _DROPPED.match(name) and name != "_operator.getitem":
            return
        if name == "_operator.getitem":
            source = self.values[node.args[0]]
            self.values[node] = source[node.args[1]]
            return
        if name == DRAWN:
            self.inputs.append((str(node.args[1]), self._new(node)))
            return
        at = self._open(node, root)
        arguments = tuple(self._argument(argument, at) for argument in node.args)
        named = {key: self._argument(argument, at) for key, argument in node.kwargs.items()}
        if name == MARK:
            self._mark(node, at, arguments)
            return
        alias = same_as(name, arguments, named, self._fact_of, node.meta.get("val"))
        if alias is not None and not _writes_part(node):
            self.values[node] = alias
            return
        # A repetition within one call of a function. Repetitions in other calls stay: each call
        # computes its own.
        frames = self._frames(node)
        again = (name, str(arguments), str(named), frames[:-1])
        drawn = draws(name, arguments) or _ATTENTION.match(name)
        if again in at.computed and not drawn:
            self.values[node] = at.computed[again]
            return
        value = node.meta.get("val")
        single = isinstance(value, torch.Tensor)
        outs = tuple(
            self._new(node, tensor) if isinstance(tensor, torch.Tensor) else -1
            for tensor in ([value] if single else value)
        )
        self.values[node] = Ref(outs[0]) if single else tuple(Ref(out) for out in outs)
        at.computed[again] = self.values[node]
        at.items.append(Op(name, arguments, named, outs, single, frames))

    def _stop(self, node: fx.Node, root: _Open) -> None:
        """Stop gradients through a node's result; the caller stops them for a call's result."""
        at = self._open(node, root)
        result = name_of(node.target) == MARK and str(node.args[1]).startswith(f"out|{at.path}|")
        if result and at.above is not None:
            at = at.above
        value = self._seen(self.values.get(node), at)
        if not isinstance(value, Ref | Held):
            return  # several tensors, each with its own node, or known values
        frames = self._frames(node)
        again = (STOP, str(value), frames[:-1])
        if again not in at.computed:
            number = self._new(node)
            at.computed[again] = Ref(number)
            at.items.append(Op(STOP, (value,), {}, (number,), True, frames))
        self.values[node] = at.computed[again]

    def _frames(self, node: fx.Node) -> tuple[Frame, ...]:
        """The lines that a node was recorded in, without libraries that are not part of the model."""
        return tuple(frame for frame in frames_of(node) if self.own(frame.file))

    def _fact_of(self, value: Any) -> Fact | None:
        if isinstance(value, Held):
            return self.held.get(value.key)
        return self.facts.get(value.id) if isinstance(value, Ref) else None

    def _mark(self, node: fx.Node, at: _Open, arguments: tuple[Any, ...]) -> None:
        value, text = arguments[0], arguments[1]
        kind, path, number, label = text.split("|", 3)
        if isinstance(value, Held) and kind == "out":  # a parameter that is returned
            self.values[node] = value
            return
        if path != at.path:  # a call that the metadata lacks
            self.values[node] = value
            return
        number, _, method = number.partition(":")
        at.number, at.method = int(number), method or "forward"
        if kind == "in":
            at.frames = at.frames or self._frames(node)
            inside = self._new(node)
            at.arguments.append(Given(label, value, inside))
            self.passed[inside] = (at, value)
        else:
            at.frames = at.frames or self._frames(node)
            outside = self._new(node)
            at.taken.append(Taken(label, value.id, outside))

    def _open(self, node: fx.Node, root: _Open) -> _Open:
        """The call that a node belongs to."""
        stack = node.meta.get("nn_module_stack") or {}
        at = root
        for key, (path, _) in stack.items():
            if not path.startswith("model."):
                continue  # the wrapper of the model, and the model
            name = path.removeprefix("model.").split("@")[0]
            name = self.paths.get(name, name)
            if name not in self.trace.kinds:
                continue
            at = at.inner.get(key) or self._enter(at, key, name)
        return at

    def _enter(self, at: _Open, key: str, path: str) -> _Open:
        opened = at.inner[key] = _Open(path, at)
        at.items.append(opened)
        return opened

    def _argument(self, value: Any, at: _Open) -> Any:
        if isinstance(value, fx.Node):
            if value not in self.values:
                constant = self.known.argument(value)
                if constant is not None:
                    return constant
                raise GraphError(f"{value.target}: a value that has no form in JAX", _SHAPES)
            return self._seen(self.values[value], at)
        if isinstance(value, list | tuple):
            return tuple(self._argument(element, at) for element in value)
        if isinstance(value, torch.SymInt):
            return size_of(value)
        return value

    def _seen(self, value: Any, at: _Open) -> Any:
        """A value as a call sees it: an argument that a hook kept of another call is replaced by
        what was passed.
        """
        if isinstance(value, tuple):
            return tuple(self._seen(element, at) for element in value)
        while isinstance(value, Ref) and value.id in self.passed:
            call, source = self.passed[value.id]
            if call in _upwards(at):
                break
            value = source
        return value

    def _outputs(self, root: _Open) -> Any:
        node = next(node for node in self.trace.program.graph.nodes if node.op == "output")
        leaves = [self._argument(leaf, root) for leaf in node.args[0]]
        specs = self.trace.program.graph_signature.output_specs
        leaves = [
            leaf
            for leaf, spec in zip(leaves, specs, strict=True)
            if spec.kind.name == "USER_OUTPUT"
        ]
        return _placed(self.trace.outputs, leaves)


_SHAPES = "see docs/port.md, 'Models that do not export'"


def _placed(outputs: Any, leaves: list[Any]) -> Any:
    if isinstance(outputs, OutputLeaf):
        return leaves[outputs.index]
    if isinstance(outputs, dict):
        return {key: _placed(element, leaves) for key, element in outputs.items()}
    if isinstance(outputs, tuple | list):
        return tuple(_placed(element, leaves) for element in outputs)
    return outputs


def _close(open_: _Open) -> Call:
    return _closed(open_)[1]


def _closed(open_: _Open) -> tuple[list[Any], Call]:
    """A call, and the items recorded in it that must precede it because their results are its
    arguments.

    If a module receives a view of a tensor that changes in place, the view is recorded when the
    module uses it.
    """
    items: list[Any] = []
    for entry in open_.items:
        if isinstance(entry, _Open):
            earlier, call = _closed(entry)
            items += earlier
            if call.body or call.taken:
                items.append(call)
        else:
            items.append(entry)
    wanted = {number for argument in open_.arguments for number in _ids(argument.value)}
    own = {argument.inside for argument in open_.arguments}  # with all that depends on it
    for item in items:
        if own & _all_uses(item):
            own |= set(item.outs)
    before: list[Any] = []
    for item in reversed(items):
        if wanted & set(item.outs) - own:
            wanted |= _all_uses(item)
            before.insert(0, item)
    kept = tuple(entry for entry in items if not any(entry is other for other in before))
    return before, Call(
        open_.path,
        open_.number,
        tuple(open_.arguments),
        tuple(open_.taken),
        kept,
        open_.frames,
        open_.method,
    )


def _upwards(at: _Open | None) -> Iterator[_Open]:
    """A call and the calls around it."""
    while at is not None:
        yield at
        at = at.above


def _ids(value: Any) -> list[int]:
    return [reference.id for reference in references(value)]


def _with_free(root: Call, inputs: Iterable[tuple[str, int]], outputs: Any) -> Call:
    """The calls, with unmarked uses and results added to their arguments and results."""
    return _Boundaries(outputs).call(root, {number for _, number in inputs}, set())


class _Boundaries:
    """Adds tensors that cross the boundary of a call without a mark, as unlabeled arguments and
    results.
    """

    def __init__(self, outputs: Any) -> None:
        self.outputs = {reference.id for reference in references(_flat(outputs))}

    def call(self, call: Call, visible: set[int], wanted: set[int]) -> Call:
        body: list[Any] = []
        produced: set[int] = set()
        after: list[set[int]] = []
        later: set[int] = set(wanted) | {result.inside for result in call.taken}
        if not call.path:
            later |= self.outputs
        for item in reversed(call.body):
            after.append(set(later))
            later |= _all_uses(item)
        after.reverse()
        for item, then in zip(call.body, after, strict=True):
            if isinstance(item, Call):
                item = self.call(item, set(), then)
                produced |= set(item.outs)
            else:
                produced |= set(item.outs)
            body.append(item)
        inside = produced | {argument.inside for argument in call.arguments}
        missing = list(
            dict.fromkeys(
                number
                for number in (
                    *(use for item in body for use in uses(item)),
                    *(result.inside for result in call.taken),
                )
                if number not in inside
            )
        )
        arguments = list(call.arguments)
        if call.path:
            arguments += [Given("", Ref(number), number) for number in missing]
        used = {use for item in body for use in uses(item)} | {
            result.inside for result in call.taken
        }
        taken = list(call.taken)
        outside = {result.outside for result in taken}
        taken += [
            Taken("", number, number)
            for number in sorted(produced & wanted)
            if number not in outside
        ]
        used |= {result.inside for result in taken}
        return Call(
            call.path,
            call.number,
            tuple(argument for argument in arguments if argument.inside in used),
            tuple(taken),
            tuple(body),
            call.frames,
            call.method,
        )


def _all_uses(item: Any) -> set[int]:
    """Numbers that an item and all items in it use."""
    if isinstance(item, Op):
        return set(uses(item))
    numbers = set(uses(item)) | {result.inside for result in item.taken}
    for inner in item.body:
        numbers |= _all_uses(inner)
    return numbers


def _flat(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for element in value.values() for leaf in _flat(element)]
    if isinstance(value, tuple | list):
        return [leaf for element in value for leaf in _flat(element)]
    return [value]


def _whole(value: Any) -> Free | None:
    """A real number that is a size, or a sum or product of sizes; None if it is not whole."""
    if not isinstance(value, torch.SymFloat):
        return None
    expression = value.node.expr.replace(
        lambda term: type(term).__name__ == "ToFloat", lambda term: term.args[0]
    )
    expression = sympy.nsimplify(expression, rational=True)
    hint = value.node.hint
    if not expression.is_integer or expression.atoms(sympy.Function) or hint is None:
        return None
    return Free(expression, int(hint))


def _ends(node: fx.Node) -> Iterator[fx.Node]:
    """The nodes that finally use the numbers computed from a node."""
    for user in node.users:
        if isinstance(user.meta.get("val"), torch.SymFloat | torch.SymBool):
            yield from _ends(user)
        else:
            yield user


def _writes_part(node: fx.Node) -> bool:
    """Whether a node writes a slice of a tensor, which shows in its shape."""
    target = name_of(node.target) == "aten.copy.default" and node.args[0]
    return isinstance(target, fx.Node) and name_of(target.target) == "aten.slice.Tensor"

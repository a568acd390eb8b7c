"""Merging of two recordings: with the inputs that a caller may leave out, and without them.

The calls and operators of both are aligned by module, operator and source line. A value that only
the recording with the inputs has is absent without them. Where an operator of both takes different
values, a choice between them precedes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from pathlib import PurePath
from typing import Any

import sympy
import torch

from converters.graph.choices import CHOICE
from converters.graph.draws import ATTENTION, is_dropout, is_recurrent, kept_layers
from converters.graph.ir import (
    Call,
    Fact,
    Free,
    Given,
    Graph,
    Held,
    Item,
    Op,
    Ref,
    Taken,
    calls,
    references,
)


class OptionError(Exception):
    """The recordings with and without an input cannot be one source."""


def with_outputs_of_both(trained: Graph, evaluated: Graph) -> Graph:
    """The graph of training, with the named outputs that only evaluation gives.

    Raises:
        OptionError: the graphs differ in more than dropouts and outputs.
    """
    names = {*trained.outputs, *evaluated.outputs}
    of_mode = {
        name: name in trained.outputs
        for name in sorted(names)
        if (name in trained.outputs) != (name in evaluated.outputs)
    }
    both = _Merge(trained, evaluated, of_mode).run()
    return replace(both, of_mode=of_mode, otherwise=frozenset())


def merged(full: Graph, bare: Graph) -> Graph:
    """Merge both graphs. Inputs that only `full` has may be left out.

    Raises:
        OptionError: the recordings differ in more than what depends on these inputs.
    """
    return _Merge(full, bare).run()


@dataclass
class _Scope:
    """The body of a call while it is merged."""

    items: list[Item]
    # Values chosen so far: (with the inputs, without) → the choice.
    choices: dict[tuple[Any, Any], Ref]


class _Merge:
    def __init__(self, full: Graph, bare: Graph, of_mode: Mapping[str, bool] | None = None) -> None:
        self.full, self.bare = full, bare
        self.of_mode = of_mode or {}
        self.facts = dict(full.facts)
        self.constants = dict(full.constants)
        self.count = max((*full.facts, *bare.facts, 0)) + 1
        # Number in `bare` → value in the merged graph.
        self.same: dict[int, Any] = {}
        # Result of a dropout → its input, and the reverse.
        self.before: dict[int, Ref] = {}
        self.after: dict[int, Ref] = {}
        self.layers = kept_layers(full)
        # Numbers of values that are absent without the inputs, and of those needed only then.
        self.maybe: set[int] = set()
        self.otherwise: set[int] = set()
        self.symbols: dict[sympy.Expr, sympy.Expr] = {}
        self.called = {(call.path, call.number) for call in calls(full.root)}
        # Operators of the call being merged, in `bare`, that only repeat a tensor.
        self.repeated: dict[int, Op] = {}

    def run(self) -> Graph:
        bare_inputs = dict(self.bare.inputs)
        for name, number in self.full.inputs:
            if name not in bare_inputs:
                self.maybe.add(number)
                continue
            self.same[bare_inputs[name]] = Ref(number)
            mine, theirs = (self.full.facts[number], self.bare.facts[bare_inputs[name]])
            for side, other in zip(mine.shape, theirs.shape, strict=True):
                if isinstance(side, Free) and not isinstance(other, Free):
                    raise OptionError(f"{name} has fewer free sides without it")
                if isinstance(other, Free):
                    size = side.expression if isinstance(side, Free) else sympy.Integer(side)
                    self.symbols.setdefault(other.expression, size)
        root, scope = self._body(self.full.root, self.bare.root)
        outputs = self._outputs(scope)
        optional = tuple(name for name, _ in self.full.inputs if name not in bare_inputs)
        return replace(
            self.full,
            root=replace(root, body=tuple(scope.items)),
            outputs=outputs,
            facts=self.facts,
            constants=self.constants,
            optional=optional,
            maybe=frozenset(self.maybe),
            otherwise=frozenset(self.otherwise),
        )

    def _outputs(self, scope: _Scope) -> Any:
        """The outputs. An output that only one recording has is taken from it."""
        full, bare = self.full.outputs, self.bare.outputs
        if not self.of_mode:
            return self._value(scope, full, bare)
        names = [*full, *(name for name in bare if name not in full)]
        return {
            name: self._value(scope, full[name], bare[name])
            if name in full and name in bare
            else full[name]
            if name in full
            else self._converted(bare[name])
            for name in names
        }

    # Calls.

    def _body(self, call: Call, other: Call) -> tuple[Call, _Scope]:
        """The items of a call that both recordings have."""
        scope = _Scope([], {})
        above, self.repeated = self.repeated, _repeated(other.body, self.bare)
        mine, theirs = (list(map(_key, each.body)) for each in (call, other))
        aligned = SequenceMatcher(None, mine, theirs, autojunk=False).get_opcodes()
        for kind, first, last, start, end in aligned:
            if kind == "equal":
                for item, its in zip(call.body[first:last], other.body[start:end], strict=True):
                    self._both(scope, item, its)
                continue
            for its in other.body[start:end]:
                self._without(scope, its)
            for item in call.body[first:last]:
                self._with(scope, item)
        self.repeated = above
        return call, scope

    def _both(self, scope: _Scope, item: Any, other: Any) -> None:
        if isinstance(item, Call):
            self._call(scope, item, other)
            return
        try:
            merged_operator = self._operator(scope, item, other)
        except OptionError:
            self._without(scope, other)
            self._with(scope, item)
            return
        scope.items.append(merged_operator)
        self.same |= {theirs: Ref(mine) for mine, theirs in zip(item.outs, other.outs, strict=True)}

    def _operator(self, scope: _Scope, item: Op, other: Op) -> Op:
        """An operator of both recordings, with choices where its arguments differ."""
        arguments, theirs = _arguments(item), _arguments(other)
        if item.target == ATTENTION:
            mask = arguments.get("attn_mask")
            if isinstance(mask, Ref) and theirs.get("attn_mask") is None and mask.id in self.maybe:
                theirs["attn_mask"] = _SAME
            else:
                theirs["attn_mask"] = self._unrepeated(theirs.get("attn_mask"))
        if is_recurrent(item):
            for name in ("5", "6"):
                arguments.pop(name), theirs.pop(name)
        if arguments.keys() != theirs.keys() or len(item.outs) != len(other.outs):
            raise OptionError("an operator has other arguments")
        for mine, its in zip(item.outs, other.outs, strict=True):
            if mine >= 0 and self.facts[mine].dtype != self.bare.facts[its].dtype:
                raise OptionError("an operator gives another dtype")
        values = {
            name: self._value(scope, argument, theirs[name]) for name, argument in arguments.items()
        }
        return _with_arguments(item, values)

    def _unrepeated(self, mask: Any) -> Any:
        """The mask before it is repeated for an attention, which repeats it by itself."""
        repeat = self.repeated.get(mask.id) if isinstance(mask, Ref) else None
        if repeat is None or not isinstance(repeat.arguments[0], Ref):
            return mask
        return repeat.arguments[0]

    def _call(self, scope: _Scope, item: Call, other: Call) -> None:
        known = self._labeled(other.arguments)
        arguments: list[Given] = []
        for each in item.arguments:
            theirs = known.pop(each.label, None) if each.label else None
            if not each.label:
                theirs = self._unlabeled(each, known)
            if theirs is None:
                arguments.append(each)
                if isinstance(each.value, Ref) and each.value.id in self.maybe:
                    self.maybe.add(each.inside)
                continue
            value = self._value(scope, each.value, theirs.value)
            marked = each.value != Ref(each.inside)
            inside = each.inside if marked or not isinstance(value, Ref) else value.id
            arguments.append(replace(each, value=value, inside=inside))
            self.same[theirs.inside] = Ref(inside)
        for theirs in known.values():  # arguments that only the recording without the inputs has
            value = self._converted(theirs.value)
            inside = self._new(self.bare.facts[theirs.inside])
            arguments.append(Given(theirs.label, value, inside))
            self.same[theirs.inside] = Ref(inside)
        merged_call, inner = self._body(item, other)
        results = {each.label or str(place): each for place, each in enumerate(other.taken)}
        taken: list[Taken] = []
        for place, result in enumerate(item.taken):
            its = results.pop(result.label or str(place), None)
            if its is None:
                if result.inside in self.maybe:
                    self.maybe.add(result.outside)
                taken.append(result)
                continue
            value = self._value(inner, Ref(result.inside), Ref(its.inside))
            if not isinstance(value, Ref):
                raise OptionError(f"{item.path} gives a constant")
            marked = result.inside != result.outside
            outside = result.outside if marked else value.id
            taken.append(replace(result, inside=value.id, outside=outside))
            self.same[its.outside] = Ref(outside)
        for its in results.values():
            value = self._converted(Ref(its.inside))
            if not isinstance(value, Ref):
                raise OptionError(f"{item.path} gives a constant")
            outside = self._new(self.facts[value.id])
            taken.append(Taken(its.label, value.id, outside))
            self.same[its.outside] = Ref(outside)
        call = replace(
            merged_call, arguments=tuple(arguments), taken=tuple(taken), body=tuple(inner.items)
        )
        scope.items.append(call)

    @staticmethod
    def _labeled(arguments: Sequence[Given]) -> dict[str, Given]:
        return {argument.label or f"#{place}": argument for place, argument in enumerate(arguments)}

    def _unlabeled(self, each: Given, known: dict[str, Given]) -> Given | None:
        """The matching argument of an unlabeled argument: one with the same value."""
        for name, candidate in known.items():
            if (
                not candidate.label
                and isinstance(candidate.value, Ref)
                and self._is(each.value, candidate.value)
            ):
                return known.pop(name)
        return None

    # Items of only one recording.

    def _with(self, scope: _Scope, item: Item) -> None:
        """An item that only the recording with the inputs has."""
        if isinstance(item, Op) and item.single and item.outs[0] in self.layers:
            kept, layer, other = item.arguments
            for (value, _), choice in scope.choices.items():
                other = choice if value == other else other
            item = replace(item, arguments=(kept, layer, other))
        scope.items.append(item)
        if self._drops(item):
            return
        if any(number in self.maybe for number in _given(item)):
            self.maybe |= {number for number in item.outs if number >= 0}
            self._within(item)

    def _within(self, item: Item) -> None:
        """Record what is absent within a call: it may be written as part of the call around it."""
        if not isinstance(item, Call):
            return
        self.maybe |= {
            each.inside
            for each in item.arguments
            if isinstance(each.value, Ref) and each.value.id in self.maybe
        }
        for inner in item.body:
            if any(each in self.maybe for each in _given(inner)):
                self.maybe |= {each for each in inner.outs if each >= 0}
                self._within(inner)

    def _drops(self, item: Item) -> bool:
        """Whether an item is a dropout: its result stands for its input."""
        if is_dropout(item):
            return self._stands(item.arguments[0], item.outs[0])
        if isinstance(item, Op) and item.single and item.outs[0] in self.layers:
            return self._stands(self.layers[item.outs[0]], item.outs[0])
        if not isinstance(item, Call) or not item.body or not all(map(_is_dropout, item.body)):
            return False
        if not all(self._stands(each.value, each.inside) for each in item.arguments):
            return False
        for inner in item.body:
            self._drops(inner)
        return all(self._stands(Ref(each.inside), each.outside) for each in item.taken)

    def _stands(self, value: Any, number: int) -> bool:
        if not isinstance(value, Ref) or value.id in self.maybe:
            return False
        if value.id != number:
            start = self.before.get(value.id, value)
            self.before[number] = start
            self.after[start.id] = Ref(number)
        return True

    def _without(self, scope: _Scope, item: Item) -> None:
        """An item that only the recording without the inputs has."""
        copied = self._copied(item)
        scope.items.append(copied)
        self.otherwise |= {number for number in copied.outs if number >= 0}

    def _copied(self, item: Item) -> Item:
        """An item of the recording without the inputs, with the numbers and sizes of the merged
        graph.
        """
        if isinstance(item, Call):
            if (item.path, item.number) in self.called:
                raise OptionError(f"{item.path} is called at another place")
            passed = []
            for each in item.arguments:
                value = self._converted(each.value)
                inside = self._numbered(each.inside)
                passed.append(Given(each.label, value, inside))
            body = tuple(self._copied(inner) for inner in item.body)
            taken = []
            for result in item.taken:
                inside = self._converted(Ref(result.inside)).id
                same = result.inside == result.outside
                outside = inside if same else self._numbered(result.outside)
                taken.append(Taken(result.label, inside, outside))
            return replace(item, arguments=tuple(passed), body=body, taken=tuple(taken))
        if not isinstance(item, Op):
            raise OptionError("a function that was found too early")
        arguments = self._converted(item.arguments)
        named = self._converted(dict(item.named))
        outs = tuple(self._numbered(number) if number >= 0 else number for number in item.outs)
        return replace(item, arguments=arguments, named=named, outs=outs)

    def _numbered(self, number: int) -> int:
        """A new number for a value of the recording without the inputs."""
        if number not in self.same:
            self.same[number] = Ref(self._new(self._fact(self.bare.facts[number])))
        return int(self.same[number].id)

    def _new(self, fact: Fact) -> int:
        number = self.count
        self.count += 1
        self.facts[number] = fact
        return number

    def _fact(self, fact: Fact) -> Fact:
        return replace(fact, shape=self._converted(tuple(fact.shape)))

    def _converted(self, value: Any) -> Any:
        """The merged graph's value for a value of the recording without the inputs."""
        if isinstance(value, Ref):
            if value.id not in self.same:
                raise OptionError("a value comes from elsewhere")
            merged_value = self.same[value.id]
            return (
                self.after.get(merged_value.id, merged_value)
                if isinstance(merged_value, Ref)
                else merged_value
            )
        if isinstance(value, Held):
            return self._constant(value)
        if isinstance(value, Free):
            expression = value.expression.xreplace(self.symbols)
            return int(expression) if expression.is_Integer else Free(expression, value.hint)
        if isinstance(value, tuple | list):
            return tuple(map(self._converted, value))
        if isinstance(value, Mapping):
            return {name: self._converted(element) for name, element in value.items()}
        return value

    def _constant(self, value: Held) -> Held:
        tensor = self.bare.constants.get(value.key)
        if tensor is None:
            return value
        for key, mine in self.constants.items():
            if mine.dtype == tensor.dtype and torch.equal(mine, tensor):
                return Held(key)
        key = value.key
        while key in self.constants:
            key += "_"
        self.constants[key] = tensor
        return Held(key)

    # Values.

    def _is(self, value: Any, other: Any) -> bool:
        """Whether two values of the recordings are the same value."""
        if isinstance(value, Ref) and isinstance(other, Ref):
            merged_value = self.same.get(other.id)
            if not isinstance(merged_value, Ref):
                return False
            return self.before.get(value.id, value) == self.before.get(
                merged_value.id, merged_value
            )
        if isinstance(value, Held) and isinstance(other, Held):
            mine, theirs = (
                graph.constants.get(each.key)
                for graph, each in ((self.full, value), (self.bare, other))
            )
            if mine is None or theirs is None:
                return mine is theirs and value == other
            return mine.dtype == theirs.dtype and torch.equal(mine, theirs)
        if isinstance(other, Free):
            return (value.hint if isinstance(value, Free) else value) == other.hint
        return type(value) is type(other) and (
            value == other or (value != value and other != other)
        )

    def _value(self, scope: _Scope, value: Any, other: Any) -> Any:
        """The merged graph's value for a pair of values of the recordings."""
        if other is _SAME:
            return value
        if isinstance(value, tuple | list) and isinstance(other, tuple | list):
            if len(value) != len(other):
                raise OptionError("a list has another length")
            return tuple(self._value(scope, *pair) for pair in zip(value, other, strict=True))
        if isinstance(value, Mapping) and isinstance(other, Mapping):
            if value.keys() != other.keys():
                raise OptionError("it gives other outputs")
            return {name: self._value(scope, value[name], other[name]) for name in value}
        if self._is(value, other):
            return value
        if isinstance(value, Ref) and isinstance(other, Ref | Held):
            return self._chosen(scope, value, other)
        raise OptionError(f"{value} is {other}")

    def _chosen(self, scope: _Scope, value: Ref, other: Ref | Held) -> Ref:
        """A choice between two tensors."""
        if value.id not in self.maybe:
            where = _line_of(self.full.root, value)
            raise OptionError(
                f"a value{where} is computed in another way without it, though not from it"
            )
        theirs = self._converted(other)
        if isinstance(theirs, Ref) and theirs.id in self.maybe:
            where = _line_of(self.full.root, value)
            raise OptionError(f"a value{where} is computed from it in two ways")
        if (value, theirs) not in scope.choices:
            number = self._new(self.facts[value.id])
            source = _producer(scope.items, value) or _producer(scope.items, theirs)
            frames = source.frames if source is not None else ()
            scope.items.append(Op(CHOICE, (value, theirs), {}, (number,), True, frames))
            scope.choices[value, theirs] = Ref(number)
        return scope.choices[value, theirs]


_SAME = object()
_ATTENTION_ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
_ATTENTION_USUAL = {"attn_mask": None, "is_causal": False}


def _arguments(item: Op) -> dict[str, Any]:
    """The arguments of an operator by name, without those that set a mode."""
    if item.target == ATTENTION:
        arguments = dict(zip(_ATTENTION_ARGUMENTS, item.arguments, strict=False)) | dict(item.named)
        arguments.pop("dropout_p", None)
        return {**_ATTENTION_USUAL, **arguments}
    return {str(place): argument for place, argument in enumerate(item.arguments)} | dict(
        item.named
    )


def _with_arguments(item: Op, values: Mapping[str, Any]) -> Op:
    if item.target == ATTENTION:
        kept = {
            name: value
            for name, value in values.items()
            if name not in _ATTENTION_USUAL or value != _ATTENTION_USUAL[name]
        }
        plain = dict(zip(_ATTENTION_ARGUMENTS, item.arguments, strict=False)) | dict(item.named)
        if plain.get("dropout_p"):
            kept["dropout_p"] = plain["dropout_p"]
        first = tuple(kept.pop(name) for name in _ATTENTION_ARGUMENTS[:3])
        return replace(item, arguments=first, named=kept)
    arguments = tuple(
        values.get(str(place), argument) for place, argument in enumerate(item.arguments)
    )
    named = {name: values.get(name, argument) for name, argument in item.named.items()}
    return replace(item, arguments=arguments, named=named)


def _key(item: Item) -> Any:
    """Key by which items of two recordings are aligned."""
    if isinstance(item, Call):
        return item.path, item.number
    assert isinstance(item, Op)
    line = (item.frames[-1].file, item.frames[-1].line) if item.frames else ()
    return item.target, line


def _given(item: Item) -> Iterator[int]:
    if isinstance(item, Op):
        yield from (reference.id for reference in references((item.arguments, item.named)))
    elif isinstance(item, Call):
        yield from (
            argument.value.id for argument in item.arguments if isinstance(argument.value, Ref)
        )


def _repeated(items: Sequence[Item], graph: Graph) -> dict[int, Op]:
    """Numbers of tensors that only repeat another tensor of four axes → the operator."""
    repeats: dict[int, Op] = {}
    for item in items:
        if not isinstance(item, Op) or item.target != "aten.expand.default":
            continue
        source = item.arguments[0]
        if isinstance(source, Ref):
            ranks = [len(graph.facts[each].shape) for each in (source.id, item.outs[0])]
            if ranks == [4, 4]:
                repeats[item.outs[0]] = item
    return repeats


def _is_dropout(item: Item) -> bool:
    return is_dropout(item) or (isinstance(item, Call) and all(map(_is_dropout, item.body)))


def _producer(items: Sequence[Item], value: Any) -> Item | None:
    for item in reversed(items):
        if isinstance(value, Ref) and value.id in item.outs:
            return item
    return None


def _line_of(root: Call, value: Ref) -> str:
    """The source location of a tensor, in words: " at net.py:12"; "" if no line gives it."""
    for call in calls(root):
        for item in call.body:
            if value.id in item.outs and item.frames:
                frame = item.frames[-1]
                return f" at {PurePath(frame.file).name}:{frame.line}"
    return ""


# The merged graph restricted to some of its inputs.


def restricted(graph: Graph, names: Sequence[str]) -> Graph:
    """The graph restricted to these of its optional inputs."""
    return _Restricted(graph, names).run()


class _Restricted:
    def __init__(self, graph: Graph, names: Sequence[str]) -> None:
        self.graph = graph
        self.absent = {
            number for name, number in graph.inputs if name in graph.optional and name not in names
        }
        self.names = names
        self.same: dict[int, Any] = {}

    def run(self) -> Graph:
        inputs = tuple(entry for entry in self.graph.inputs if entry[1] not in self.absent)
        root = self._call(self.graph.root)
        return replace(
            self.graph, inputs=inputs, root=root, outputs=self._value(self.graph.outputs)
        )

    def _value(self, value: Any) -> Any:
        if isinstance(value, Ref):
            return self._value(self.same[value.id]) if value.id in self.same else value
        if isinstance(value, tuple | list):
            return tuple(map(self._value, value))
        if isinstance(value, Mapping):
            return {name: self._value(element) for name, element in value.items()}
        return value

    def _is_absent(self, value: Any) -> bool:
        return any(reference.id in self.absent for reference in references(self._value(value)))

    def _call(self, call: Call) -> Call:
        arguments = []
        for each in call.arguments:
            if self._is_absent(each.value):
                self.absent.add(each.inside)
                continue
            arguments.append(replace(each, value=self._value(each.value)))
        body: list[Item] = []
        for item in call.body:
            if isinstance(item, Call):
                body.append(self._call(item))
            elif isinstance(item, Op):
                body += self._operator(item)
        taken = []
        for result in call.taken:
            inside = self._value(Ref(result.inside))
            if self._is_absent(inside):
                self.absent.add(result.outside)
                continue
            taken.append(replace(result, inside=inside.id))
        return replace(call, arguments=tuple(arguments), body=tuple(body), taken=tuple(taken))

    def _operator(self, item: Op) -> list[Op]:
        if item.target == CHOICE:
            value, other = item.arguments
            self.same[item.outs[0]] = other if self._is_absent(value) else value
            return []
        named = dict(item.named)
        if item.target == ATTENTION and self._is_absent(named.get("attn_mask")):
            named.pop("attn_mask")
        if self._is_absent((item.arguments, named)):
            self.absent |= set(item.outs)
            return []
        return [replace(item, arguments=self._value(item.arguments), named=self._value(named))]


def outcome(graph: Graph) -> Any:
    """The outputs of a graph as one expression of its inputs. Equal outcomes compute the same.

    Dropouts are skipped: they do nothing in evaluation.
    """
    return _Outcome(graph).of(graph.outputs)


class _Outcome:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        # Expressions are known only by hash: in full they would be written out for each use.
        self.hashes: dict[int, int] = {number: hash(name) for name, number in graph.inputs}
        # An attention repeats a mask by itself.
        self.repeated: dict[int, Op] = {}
        self.layers = kept_layers(graph)
        self._call(graph.root)

    def _call(self, call: Call) -> None:
        self.repeated |= _repeated(call.body, self.graph)
        for each in call.arguments:
            self.hashes[each.inside] = self._number(each.value)
        for item in call.body:
            if isinstance(item, Call):
                self._call(item)
            elif is_dropout(item):
                self.hashes[item.outs[0]] = self._number(item.arguments[0])
            elif isinstance(item, Op) and item.outs[0] in self.layers:
                self.hashes[item.outs[0]] = self._number(self.layers[item.outs[0]])
            elif isinstance(item, Op):
                arguments = _arguments(item)
                mask = arguments.get("attn_mask")
                if item.target == ATTENTION and isinstance(mask, Ref) and mask.id in self.repeated:
                    arguments["attn_mask"] = self.repeated[mask.id].arguments[0]
                if is_recurrent(item):
                    arguments.pop("5"), arguments.pop("6")
                call_hash = (
                    item.target,
                    *sorted((name, self.of(x)) for name, x in arguments.items()),
                )
                for place, out in enumerate(item.outs):
                    self.hashes[out] = hash((*map(str, call_hash), place))
        for result in call.taken:
            self.hashes[result.outside] = self._number(Ref(result.inside))

    def _number(self, value: Any) -> int:
        if isinstance(value, Ref):
            return self.hashes.get(value.id, -1)
        return hash(str(self.of(value)))

    def of(self, value: Any) -> Any:
        """A value, with tensors replaced by hashes of what computes them."""
        if isinstance(value, Ref):
            return f"%{self._number(value)}"
        if isinstance(value, Held):
            tensor = self.graph.constants.get(value.key)
            return value.key if tensor is None else f"{tensor.dtype} {tensor.tolist()}"
        if isinstance(value, Free):
            return repr(value.hint)
        if isinstance(value, tuple | list):
            return f"({', '.join(str(self.of(element)) for element in value)})"
        if isinstance(value, Mapping):
            return (
                f"{{{', '.join(f'{name}: {self.of(element)}' for name, element in value.items())}}}"
            )
        return repr(value)

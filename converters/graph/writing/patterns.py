"""Simplification of masks of nothing or of the future, repeated keys, and empty caches.

The resulting graph has fewer operators and the same values. Items that nothing needs any more are
left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

import torch

from converters.graph.choices import SPREAD
from converters.graph.ir import (
    Call,
    Fact,
    Frame,
    Given,
    Graph,
    Held,
    Item,
    Op,
    Ref,
    calls,
    references,
)
from converters.graph.writing.original.functions import within

_EXPAND = "aten.expand.default"
_AND = ("aten.bitwise_and.Tensor", "aten.logical_and.default", "aten.__and__.Tensor")
_OR = ("aten.bitwise_or.Tensor", "aten.logical_or.default", "aten.__or__.Tensor")
_BINARY = tuple(f"aten.{name}.Tensor" for name in ("add", "sub", "mul", "div"))
_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
_ATTENTION = "aten.scaled_dot_product_attention.default"


def plain(graph: Graph, modules: Mapping[str, Any], constants: Mapping[str, Any]) -> Graph:
    """The graph with these said as one would say them.

    Args:
        graph: the recorded model.
        modules: path → module.
        constants: name of a parameter, buffer or constant → tensor.
    """
    walk = _Walk(graph, constants, modules)
    walk.call(graph.root)
    walk.demanded |= {reference.id for reference in references(graph.outputs)}
    attentions = _told(walk, modules)
    while more := _half_told(walk, attentions):
        walk.demanded |= more
        attentions = _told(walk, modules)
    facts = dict(graph.facts)
    for number, known in walk.known.items():
        if isinstance(known, _Padded) and known.whole not in walk.demanded:
            facts[number] = graph.facts[known.padding]
            walk.same[known.whole] = Ref(known.padding)
    rewritten = _Rewritten(walk, {**walk.instead, **attentions})
    root = rewritten.call(graph.root)
    outputs = rewritten.value(graph.outputs)
    return replace(graph, root=pruned(root, outputs), outputs=outputs, facts=facts)


def _half_told(walk: _Walk, attentions: Mapping[int, Op]) -> set[int]:
    """Masks of the past and of padding that an attention wants whole, where others do with the padding."""
    masks = set()
    for _, item in walk.attentions:
        known = _mask_of(walk, item)
        if not isinstance(known, _Padded) or not known.past:
            continue
        if not attentions.get(item.outs[0], item).named.get("is_causal"):
            masks.add(known.whole)
    return masks - walk.demanded


def _mask_of(walk: _Walk, item: Op) -> _Known | None:
    """Facts about an attention's mask."""
    mask = item.arguments[3] if len(item.arguments) > 3 else item.named.get("attn_mask")
    return walk.known.get(mask.id) if isinstance(mask, Ref) else None


# What a mask, or what one is made of, is known to be.


@dataclass(frozen=True)
class _Index:
    """Each element is its index along an axis, counted from the end."""

    axis: int


@dataclass(frozen=True)
class _Truth:
    """All of it is true."""


@dataclass(frozen=True)
class _Falsity:
    """All elements are false."""


@dataclass(frozen=True)
class _Past:
    """True where the last index is not above the second last, along the last two axes."""


@dataclass(frozen=True)
class _Number:
    """All of it is one integer."""

    value: int


@dataclass(frozen=True)
class _Padding:
    """A mask of (rows, 1, 1, keys); `source` is that of (rows, keys)."""

    source: int


@dataclass(frozen=True)
class _Padded:
    """The tensor `whole`: true where the `_Padding` of number `padding` is; `past`: and only of the past."""

    whole: int
    padding: int
    past: bool


_Known = _Index | _Truth | _Falsity | _Past | _Number | _Padding | _Padded


class _Walk:
    """Facts about the tensors of a graph, and which tensors equal others."""

    def __init__(
        self, graph: Graph, constants: Mapping[str, Any], modules: Mapping[str, Any]
    ) -> None:
        self.facts, self.constants, self.modules = graph.facts, constants, modules
        # Path of a module → the lines that it is called on.
        self.frames: dict[str, tuple[Frame, ...]] = {}
        self.known: dict[int, _Known] = {}
        self.made: dict[int, Op] = {}
        self.same: dict[int, Ref | Held] = {}
        # Number of what an operator gives → the operator that is written for it.
        self.instead: dict[int, Op] = {}
        # Each attention, with the path of the module that it is in.
        self.attentions: list[tuple[str, Op]] = []
        # Masks that more than attentions need as they are.
        self.demanded: set[int] = set()

    def call(self, module_call: Call) -> None:
        for argument in module_call.arguments:
            self._crosses(argument.value, argument.inside)
        here: set[int] = set()
        self.frames[module_call.path] = module_call.frames
        for item in module_call.body:
            if isinstance(item, Op):
                self._op(item, module_call.path)
                self._broadcast(item, here)
                here.update(item.outs)
            elif isinstance(item, Call):
                self.call(item)
        for taken in module_call.taken:
            self._crosses(Ref(taken.inside), taken.outside)

    def _crosses(self, value: Ref | Held, target: int) -> None:
        if isinstance(value, Ref) and value.id in self.known:
            self.known[target] = self.known[value.id]

    def _op(self, item: Op, path: str) -> None:
        if item.target == _ATTENTION:
            self.attentions.append((path, item))
        else:
            for reference in references((item.arguments, item.named)):
                known = self.known.get(reference.id)
                if isinstance(known, _Padded):
                    self.demanded.add(known.whole)
        if not item.single:
            return
        out = item.outs[0]
        self.made[out] = item
        same = self._alias(item)
        if same is not None:
            self.same[out] = same
            if isinstance(same, Ref) and same.id in self.known:
                self.known[out] = self.known[same.id]
            return
        kind = self._kind(item)
        if isinstance(kind, _Padding) and out not in self.known:
            item = self._spread(item, kind, path)
            self.made[out] = self.instead[out] = item
        if kind is not None:
            self.known[out] = kind
        counted = self._counted(item)
        if counted is not None:
            self.instead[out] = counted
        repeated = self._repeated(item)
        if repeated is not None:
            whole, own = self.facts[out].shape, self._fact(repeated).shape
            pairs = zip((*(1,) * (len(whole) - len(own)), *own), whole, strict=True)
            wide = tuple(-1 if side == mine and mine != 1 else side for mine, side in pairs)
            expanded = replace(item, target=_EXPAND, arguments=(repeated, wide), named={})
            self.made[out] = self.instead[out] = expanded

    def _counted(self, item: Op) -> Op | None:
        """A count of integers that torch wants as floats: the count of the integers."""
        if item.target != "aten.histc.default":
            return None
        cast_op = _producer(self, item.arguments[0], ("to", "_to_copy"))
        source = cast_op.arguments[0] if cast_op is not None else None
        if not isinstance(source, Ref) or self.facts[source.id].dtype not in _INTEGERS:
            return None
        return replace(item, arguments=(source, *item.arguments[1:]))

    def _broadcast(self, item: Op, here: Set[int]) -> None:
        """Leave out that an operand is repeated to the shape that the other one has."""
        if item.target not in _BINARY or item.outs[0] in self.instead:
            return
        shape = self.facts[item.outs[0]].shape
        for place in range(2):
            operand, other = item.arguments[place], item.arguments[1 - place]
            wide = _producer(self, operand, ("expand", "expand_as"))
            if wide is None or operand.id not in here or not isinstance(other, Ref):
                continue
            source = wide.arguments[0]
            if (
                isinstance(source, Ref)
                and self._fact(operand).shape == self._fact(other).shape == shape
            ):
                arguments = list(item.arguments)
                arguments[place] = source
                broadcast = replace(item, arguments=tuple(arguments))
                self.made[item.outs[0]] = self.instead[item.outs[0]] = broadcast
                return

    def _repeated(self, item: Op) -> Ref | None:
        """The operand that is only repeated along the axes of a mask that hides nothing."""
        repeated: Any = None
        match item.target, item.arguments:
            case (("aten.where.self" | "aten.where.ScalarOther"), (asked, Ref() as one, _)):
                repeated = one if isinstance(self._of(asked), _Truth) else None
            case target, (a, b) if target in (*_AND, *_OR):
                neutral = _Truth if target in _AND else _Falsity
                repeated = next(
                    (
                        other
                        for operand, other in ((a, b), (b, a))
                        if isinstance(self._of(operand), neutral)
                    ),
                    None,
                )
        if not isinstance(repeated, Ref):
            return None
        return repeated if self._fact(repeated).dtype == self.facts[item.outs[0]].dtype else None

    def _alias(self, item: Op) -> Ref | Held | None:
        """The input that an operator returns unchanged, or None."""
        match item.target, item.arguments:
            case "aten.cat.default", (tuple(parts), *_):
                left = [part for part in parts if not self._empty(part)]
                if len(left) == 1 and len(parts) > 1 and isinstance(left[0], Ref):
                    same = self._fact(left[0]).dtype == self.facts[item.outs[0]].dtype
                    return left[0] if same else None
            case (
                ("aten.where.self" | "aten.where.ScalarOther"),
                (
                    Ref(id=asked),
                    Ref() as one,
                    _,
                ),
            ):
                fact, out = self._fact(one), self.facts[item.outs[0]]
                if isinstance(self.known.get(asked), _Truth) and fact == out:
                    return one
            case target, (a, b) if target in (*_AND, *_OR):
                out = self.facts[item.outs[0]]
                neutral = _Truth if target in _AND else _Falsity
                for operand, other in ((a, b), (b, a)):
                    same = isinstance(other, Ref) and self._fact(other) == out
                    if same and isinstance(self._of(operand), neutral):
                        return other
        return None

    def _of(self, value: Any) -> _Known | None:
        """Facts about an argument."""
        if isinstance(value, Ref):
            return self.known.get(value.id)
        tensor = self.constants.get(value.key) if isinstance(value, Held) else None
        if tensor is None or tensor.dtype != torch.bool or tensor.numel() != 1:
            return None
        return _Truth() if bool(tensor) else _Falsity()

    def _fact(self, value: Ref) -> Fact:
        return self.facts[value.id]

    def _empty(self, value: Any) -> bool:
        """Whether this is what torch.cat passes over: one axis without elements."""
        if isinstance(value, Held):
            tensor = self.constants.get(value.key)
            return tensor is not None and tuple(tensor.shape) == (0,)
        return isinstance(value, Ref) and self._fact(value).shape == (0,)

    def _kind(self, item: Op) -> _Known | None:
        packet = item.target.split(".")[1] if item.target.startswith("aten.") else ""
        first = item.arguments[0] if item.arguments else None
        out = self.facts[item.outs[0]]
        if packet == "arange":
            whole = item.target in ("aten.arange.default", "aten.arange.start") and (
                item.target == "aten.arange.default" or first == 0
            )
            return _Index(-1) if whole and not out.dtype.is_floating_point else None
        if packet in ("zeros", "new_zeros", "zeros_like"):
            return _Falsity() if out.dtype == torch.bool else None
        if item.target in (*_AND, *_OR) and len(item.arguments) == 2:
            return self._joined(item.target, item.arguments, item.outs[0])
        if item.target == "aten.index.Tensor":
            return self._looked_up(item)
        if packet == "diff":
            return _Number(1) if self._is_counted(item) else None
        if packet in ("ones", "new_ones", "full", "full_like", "ones_like"):
            filled = "ones" in packet or item.arguments[1] is True
            return _Truth() if filled and out.dtype == torch.bool else None
        if not isinstance(first, Ref) or first.id not in self.known:
            return None
        known, before = self.known[first.id], self._fact(first)
        if packet == "expand" and isinstance(known, _Padding):
            last = before.shape[1:3] == (1, 1) and before.shape[3] == out.shape[3]
            return _Padded(item.outs[0], first.id, False) if last and len(out.shape) == 4 else None
        if packet in ("view", "reshape", "unsqueeze", "expand", "squeeze", "_unsafe_view", "slice"):
            return _moved(known, before, out)
        if packet == "_to_copy":
            integral = not (out.dtype.is_floating_point or out.dtype.is_complex)
            return (
                known
                if integral and (out.dtype != torch.bool or not isinstance(known, _Index))
                else None
            )
        return self._compared(packet, item, known)

    def _compared(self, packet: str, item: Op, known: _Known) -> _Known | None:
        other = item.arguments[1] if len(item.arguments) > 1 else None
        if packet == "cumsum" and known == _Falsity():
            return _Number(0)
        if isinstance(known, _Number):
            value = other if type(other) is int else getattr(self._of(other), "value", None)
            if packet not in ("eq", "ne") or value is None:
                return None
            return _Truth() if (known.value == value) == (packet == "eq") else _Falsity()
        if packet == "ge" and isinstance(known, _Index) and other == 0 and type(other) is int:
            return _Truth()
        theirs = self._of(other)
        pair = (known, theirs)
        if packet == "le" and pair == (_Index(-1), _Index(-2)):
            return _Past()
        if packet == "ge" and pair == (_Index(-2), _Index(-1)):
            return _Past()
        return None

    def _looked_up(self, item: Op) -> _Known | None:
        """Facts about a lookup by the indices of rows and keys: a mask, or numbers."""
        source, at = item.arguments
        out = self.facts[item.outs[0]]
        if not isinstance(source, Ref) or not isinstance(at, tuple) or len(at) != 2:
            return None
        shape, known = self._fact(source).shape, self._of(source)
        rows, other = map(self._of, at)
        if isinstance(known, _Number):
            return known
        if len(out.shape) != 4 or rows != _Index(-4) or not isinstance(other, _Index):
            return None
        if (out.shape[0], out.shape[other.axis]) != shape:
            return None
        if known == _Index(-1):
            return other
        return _Padding(source.id) if other == _Index(-1) and out.dtype == torch.bool else None

    def _is_counted(self, item: Op) -> bool:
        """Whether numbers that follow each other are subtracted, the first one from itself less one."""
        if len(item.arguments) != 4 or item.arguments[1:3] != (1, -1):
            return False
        x, _, _, before = item.arguments
        less = _producer(self, before, ("sub",))
        first = _producer(self, less and less.arguments[0], ("slice",))
        if less is None or first is None or self._of(x) != _Index(-1):
            return False
        return less.arguments[1] == 1 and first.arguments == (x, 1, 0, 1)

    def _spread(self, item: Op, known: _Padding, path: str) -> Op:
        """A mask of rows and keys as an operator of its own, on the line of the model that asks for it."""
        source: Any = Ref(known.source)
        cast_op = _producer(self, source, ("to", "_to_copy"))
        if cast_op is not None and isinstance(cast_op.arguments[0], Ref):
            source = cast_op.arguments[0]
        inner = within(self.modules[path], item.frames, self.frames.get(path, ()))
        frames = item.frames[: len(item.frames) - len(inner) + 1] if inner else item.frames
        return replace(item, target=SPREAD, arguments=(source,), named={}, frames=frames)

    def _joined(self, target: str, arguments: tuple[Any, ...], out: int) -> _Known | None:
        sides = [self._of(argument) for argument in arguments]
        if target in _AND and _Past() in sides:
            for argument, known in zip(arguments, sides, strict=True):
                if isinstance(known, _Padding) and self._fact(argument).shape[1:3] == (1, 1):
                    return _Padded(out, argument.id, True)
        neutral, strong = (_Truth(), _Falsity()) if target in _AND else (_Falsity(), _Truth())
        if strong in sides:
            return strong
        for argument, other in (sides, sides[::-1]):
            if argument == neutral and isinstance(other, _Truth | _Falsity | _Past):
                return other
        return None


def _moved(known: _Known, before: Fact, out: Fact) -> _Known | None:
    """Facts that remain after axes of one element were added, removed or repeated."""
    match known:
        case _Truth() | _Falsity() | _Number():
            return known
        case _Past() | _Padded():
            return known if before.shape[-2:] == out.shape[-2:] else None
        case _Padding():
            return None  # what it is repeated to is known by what repeats it
        case _Index(axis=axis):
            length = before.shape[axis]
            rest = [side for at, side in enumerate(before.shape, -len(before.shape)) if at != axis]
            places = [at for at, side in enumerate(out.shape, -len(out.shape)) if side == length]
            if length == 1 or any(side != 1 for side in rest) or len(places) != 1:
                return None
            return _Index(places[0])
    return None


# What is told to an attention instead.


def _told(walk: _Walk, modules: Mapping[str, Any]) -> dict[int, Op]:
    """Number of what an attention gives → the attention that is written for it.

    Modules of one class are treated alike, so that they stay one class.
    """
    groups: dict[type, list[Op]] = defaultdict(list)
    for path, item in walk.attentions:
        groups[type(modules[path])].append(item)
    attentions: dict[int, Op] = {}
    for group in groups.values():
        options = [dict(_options(walk, item)) for item in group]
        for change in ("mask", "heads"):
            if all(change in option for option in options):
                for item, option in zip(group, options, strict=True):
                    attentions[item.outs[0]] = option[change](attentions.get(item.outs[0], item))
    return attentions


def _options(walk: _Walk, item: Op) -> Iterator[tuple[str, Callable[[Op], Op]]]:
    query, key, value, *rest = item.arguments
    named = {**dict(zip(("attn_mask", "dropout_p", "is_causal"), rest, strict=False)), **item.named}
    mask = named.get("attn_mask")
    if isinstance(mask, Ref) and not named.get("is_causal"):
        known = walk.known.get(mask.id)
        sides = (walk.facts[query.id].shape[-2], walk.facts[key.id].shape[-2])
        if isinstance(known, _Truth):
            yield "mask", lambda attention: _with(attention, attn_mask=None)
        elif isinstance(known, _Past) and sides[0] == sides[1]:
            yield "mask", lambda attention: _with(attention, attn_mask=None, is_causal=True)
        elif isinstance(known, _Padded):
            if not known.past:
                yield "mask", lambda attention: attention
            elif sides[0] == sides[1] and known.whole not in walk.demanded:
                yield "mask", lambda attention: _with(attention, is_causal=True)
        else:
            # It is repeated by itself.
            wide = _producer(walk, mask, ("expand",))
            source = wide.arguments[0] if wide is not None else None
            if isinstance(source, Ref) and len(walk.facts[source.id].shape) == 4:
                yield "mask", lambda attention: _with(attention, attn_mask=source)
    sources = (_unrepeated(walk, key), _unrepeated(walk, value))
    if not named.get("enable_gqa") and None not in sources:
        yield (
            "heads",
            lambda attention: _with(attention, key=sources[0], value=sources[1], enable_gqa=True),
        )


def _with(item: Op, **changes: Any) -> Op:
    """An attention with other arguments."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    arguments = {**dict(zip(names, item.arguments, strict=False)), **item.named, **changes}
    first = tuple(arguments.pop(name) for name in ("query", "key", "value"))
    usual = {"attn_mask": None, "dropout_p": 0.0, "is_causal": False, "enable_gqa": False}
    left = {
        name: argument
        for name, argument in arguments.items()
        if name not in usual or argument != usual[name]
    }
    return replace(item, arguments=first, named=left)


def _unrepeated(walk: _Walk, value: Any) -> Ref | None:
    """The keys or values of which each head is repeated, one after the other: transformers' `repeat_kv`."""
    reshape = _producer(walk, value, ("view", "reshape", "_unsafe_view"))
    expand = _producer(walk, reshape and reshape.arguments[0], ("expand",))
    unsqueeze = _producer(walk, expand and expand.arguments[0], ("unsqueeze",))
    if reshape is None or expand is None or unsqueeze is None:
        return None
    source = unsqueeze.arguments[0]
    if not isinstance(source, Ref):
        return None
    small, wide = walk.facts[source.id].shape, walk.facts[expand.outs[0]].shape
    large = walk.facts[reshape.outs[0]].shape
    if len(small) != 4 or unsqueeze.arguments[1] not in (2, -3) or len(large) != 4:
        return None
    repeats = wide[2]
    if not isinstance(repeats, int) or not isinstance(small[1], int):
        return None
    fits = large == (small[0], small[1] * repeats, *small[2:])
    return source if fits else None


def _producer(walk: _Walk, value: Any, packets: tuple[str, ...]) -> Op | None:
    producer = walk.made.get(value.id) if isinstance(value, Ref) else None
    if producer is None or producer.target.split(".")[1] not in packets:
        return None
    return producer


class _Rewritten:
    """The calls, with what was found."""

    def __init__(self, walk: _Walk, attentions: Mapping[int, Op]) -> None:
        self.same, self.told = walk.same, attentions

    def call(self, outer: Call) -> Call:
        arguments = [self._given(each) for each in outer.arguments]
        body = tuple(self._item(item) for item in outer.body)
        handed = {each.inside: each.value for each in arguments}
        visible = {each.inside for each in arguments if each.value == Ref(each.inside)}
        taken = []
        for each in outer.taken:
            inside = self.value(Ref(each.inside))
            number = inside.id if isinstance(inside, Ref) else each.inside
            if outer.path and number in handed and each.outside != each.inside:
                self.same[each.outside] = handed[number]  # what it was given comes back
                continue
            if each.outside != each.inside:
                taken.append(replace(each, inside=number))
            elif number not in visible:  # one number inside and outside
                taken.append(replace(each, inside=number, outside=number))
        return replace(outer, arguments=tuple(arguments), taken=tuple(taken), body=body)

    def _given(self, argument: Given) -> Given:
        value = self.value(argument.value)
        if argument.value == Ref(argument.inside) and isinstance(value, Ref):
            return replace(argument, value=value, inside=value.id)
        return replace(argument, value=value)

    def _item(self, item: Item) -> Item:
        if isinstance(item, Call):
            return self.call(item)
        if not isinstance(item, Op):
            return item
        if item.single:
            item = self.told.get(item.outs[0], item)
        named = {name: self.value(argument) for name, argument in item.named.items()}
        return replace(item, arguments=self.value(item.arguments), named=named)

    def value(self, value: Any) -> Any:
        if isinstance(value, Ref):
            other = self.same.get(value.id)
            return value if other is None else self.value(other)
        if isinstance(value, tuple | list):
            return tuple(self.value(element) for element in value)
        if isinstance(value, Mapping):
            return {name: self.value(element) for name, element in value.items()}
        return value


def pruned(root: Call, outputs: Any) -> Call:
    """A model without what its outputs do not rest on."""
    while True:
        pruned_root = _pruned(root, {reference.id for reference in references(outputs)})
        if _size(pruned_root) == _size(root):
            return pruned_root
        root = pruned_root


def _size(root: Call) -> int:
    return sum(
        len(module_call.body) + len(module_call.arguments) + len(module_call.taken)
        for module_call in calls(root)
    )


def _pruned(outer: Call, wanted: set[int]) -> Call:
    taken = tuple(each for each in outer.taken if each.outside in wanted)
    needed = {each.inside for each in taken} | wanted
    body: list[Item] = []
    for item in reversed(outer.body):
        if not needed & set(item.outs):
            continue
        kept = _pruned(item, needed) if isinstance(item, Call) else item
        needed |= set(_given(kept))
        body.append(kept)
    arguments = tuple(each for each in outer.arguments if each.inside in needed)
    return replace(outer, arguments=arguments, taken=taken, body=tuple(reversed(body)))


def _given(item: Item) -> Iterable[int]:
    if isinstance(item, Op):
        return [reference.id for reference in references((item.arguments, item.named))]
    values = (
        [each.value for each in item.arguments] if isinstance(item, Call) else list(item.arguments)
    )
    return [reference.id for reference in values if isinstance(reference, Ref)]

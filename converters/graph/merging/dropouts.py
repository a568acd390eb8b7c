"""Random draws of training as dropouts: torch's own dropout, and stochastic depth in any form.

A tensor times a drawn mask, divided by the keep probability, is a dropout. Where the mask has one
element along some axes, these are dropped together (Flax's `broadcast_dims`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from converters.graph.draws import DROPOUT, is_dropout
from converters.graph.ir import Call, Fact, Graph, Op, Ref, calls, references, uses
from converters.graph.writing.patterns import pruned

_CASTS = ("to", "_to_copy", "type_as", "clone", "view", "reshape")


def with_dropouts(
    graph: Graph,
    modules: Mapping[str, torch.nn.Module],
    always: Collection[int] = (),
) -> Graph:
    """Replace the draws in a graph recorded in training by dropout operators.

    Args:
        graph: the graph.
        modules: path → module of the original.
        always: results of the draws that evaluation has too: these stay as they are.
    """
    walk = _DropoutWalk(graph.facts, Counter(_all_uses(graph)), always)
    root = walk.call(graph.root)
    dropped = replace(graph, root=pruned(root, graph.outputs), facts=walk.facts)
    return _alike(_placed(dropped), modules)


def _all_uses(graph: Graph) -> list[int]:
    used = [reference.id for reference in references(graph.outputs)]
    for call in calls(graph.root):
        used += [taken.inside for taken in call.taken]
        used += [number for item in call.body for number in uses(item)]
    return used


@dataclass(frozen=True)
class _Mask:
    """A drawn mask: the kept fraction, the factor of kept elements, and its shape."""

    keep: float
    scale: float
    shape: tuple[Any, ...]


@dataclass
class _DropoutWalk:
    facts: Mapping[int, Fact]
    count: Counter[int]
    always: Collection[int] = ()
    producers: dict[int, Op] = field(default_factory=dict)

    def call(self, outer: Call) -> Call:
        body: list[Any] = []
        before, self.producers = self.producers, {}
        for item in outer.body:
            if isinstance(item, Call):
                body.append(self.call(item))
                continue
            if isinstance(item, Op) and not set(item.outs) & set(self.always):
                self.producers |= dict.fromkeys(item.outs, item)
                item = self._dropout(item) or item
            body.append(item)
        self.producers = before
        return replace(outer, body=tuple(body))

    def _dropout(self, item: Op) -> Op | None:
        packet = item.target.removeprefix("aten.").split(".")[0]
        first = item.arguments[0] if item.arguments else None
        if packet in ("dropout", "native_dropout", "feature_dropout") and isinstance(first, Ref):
            if not item.arguments[2] or any(self.count[out] for out in item.outs[1:]):
                return None
            axes = range(2, len(self.facts[first.id].shape)) if packet[0] == "f" else ()
            return self._made(item, first, item.arguments[1], tuple(axes))
        if packet == "mul" and len(item.arguments) == 2:
            return self._masked(item, item, 1.0)
        if packet == "div" and isinstance(first, Ref) and _is_number(item.arguments[1]):
            inner = self.producers.get(first.id)
            if inner is not None and inner.target.startswith("aten.mul."):
                return self._masked(item, inner, 1 / item.arguments[1])
        return None

    def _masked(self, item: Op, product: Op, scale: float) -> Op | None:
        """The dropout that a product with a mask is, or None."""
        for value, other in (product.arguments, product.arguments[::-1]):
            mask = self._mask(other)
            if mask is None or not isinstance(value, Ref):
                continue
            scaled = scale * mask.scale
            divided = self.producers.get(value.id)
            if divided is not None and divided.target.startswith("aten.div."):
                whole, by = divided.arguments[:2]
                if _is_number(by) and isinstance(whole, Ref) and math.isclose(by, mask.keep):
                    value, scaled = whole, scaled / by
            axes = _axes(self.facts[value.id].shape, mask.shape)
            if axes is None or not math.isclose(scaled * mask.keep, 1, rel_tol=1e-9):
                continue
            return self._made(item, value, round(1 - mask.keep, 12), axes)
        return None

    def _mask(self, value: Any) -> _Mask | None:
        item = self.producers.get(value.id) if isinstance(value, Ref) else None
        if item is None:
            return None
        packet = item.target.removeprefix("aten.").split(".")[0]
        first, number = (*item.arguments, None, None)[:2]
        shape = self.facts[item.outs[0]].shape
        if packet == "bernoulli":
            keep = number if _is_number(number) else self._filled(first)
            return None if keep is None else _Mask(keep, 1.0, shape)
        if packet in _CASTS:
            inner = self._mask(first)
            same = inner is not None and len(inner.shape) == len(shape)
            return inner if same else None
        if packet in ("div", "mul") and _is_number(number):
            inner = self._mask(first)
            by = 1 / number if packet == "div" else number
            return None if inner is None else replace(inner, scale=inner.scale * by)
        if packet == "floor":
            added = self.producers.get(first.id) if isinstance(first, Ref) else None
            if added is None or not added.target.startswith("aten.add."):
                return None
            for drawn, keep in (added.arguments, added.arguments[::-1]):
                if _is_number(keep) and self._is_uniform(drawn):
                    return _Mask(keep, 1.0, shape)
        if packet in ("lt", "le", "gt", "ge") and _is_number(number) and self._is_uniform(first):
            return _Mask(number if packet[0] == "l" else 1 - number, 1.0, shape)
        return None

    def _filled(self, value: Any) -> float | None:
        """The number that all elements equal, or None."""
        item = self.producers.get(value.id) if isinstance(value, Ref) else None
        if item is None or item.target.split(".")[1] not in ("full", "full_like", "new_full"):
            return None
        number = item.arguments[2 if item.target.startswith("aten.new_full") else 1]
        return number if _is_number(number) else None

    def _is_uniform(self, value: Any) -> bool:
        item = self.producers.get(value.id) if isinstance(value, Ref) else None
        return item is not None and item.target.split(".")[1] in ("rand", "rand_like")

    def _made(self, item: Op, value: Ref, rate: float, axes: tuple[int, ...]) -> Op:
        return Op(DROPOUT, (value, rate, axes, ""), {}, item.outs[:1], True, item.frames)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _axes(shape: tuple[Any, ...], mask: tuple[Any, ...]) -> tuple[int, ...] | None:
    """The axes along which a mask has one element; () for a mask of the tensor's shape, None for a misfit."""
    if len(shape) != len(mask):
        return None
    pairs = list(enumerate(zip(shape, mask, strict=True)))
    if any(drawn not in (1, side) for _, (side, drawn) in pairs):
        return None
    return () if shape == mask else tuple(axis for axis, (_, drawn) in pairs if drawn == 1)


def _placed(graph: Graph) -> Graph:
    """Give each dropout that is a module's only operator the path of its module."""

    def call(outer: Call) -> Call:
        body = tuple(call(item) if isinstance(item, Call) else item for item in outer.body)
        if outer.path and len(body) == len(outer.taken) == 1 and is_dropout(body[0]):
            op: Any = body[0]
            own = {passed.inside for passed in outer.arguments}
            if op.outs[0] == outer.taken[0].inside and op.arguments[0].id in own:
                body = (replace(op, arguments=(*op.arguments[:3], outer.path)),)
        return replace(outer, body=body)

    return replace(graph, root=call(graph.root))


def _alike(graph: Graph, modules: Mapping[str, torch.nn.Module]) -> Graph:
    """Add dropouts of rate 0 to calls that drop nothing, where another call of their class drops."""
    axes: dict[tuple[type, str], tuple[int, ...]] = {}
    graph = replace(graph, root=_exact(graph.root, modules))
    for outer in calls(graph.root):
        for item in outer.body:
            if is_dropout(item) and item.arguments[3]:
                axes[_attribute(item.arguments[3], modules)] = item.arguments[2]
    facts = dict(graph.facts)

    def call(outer: Call) -> Call:
        body = tuple(call(item) if isinstance(item, Call) else item for item in outer.body)
        copied = replace(outer, body=body)
        key = _attribute(outer.path, modules) if outer.path else None
        if key not in axes or body or len(outer.taken) != 1:
            return copied
        inside = outer.taken[0].inside
        if inside not in {argument.inside for argument in outer.arguments}:
            return copied
        number = max(facts) + 1
        facts[number] = facts[inside]
        op = Op(
            DROPOUT, (Ref(inside), 0.0, axes[key], outer.path), {}, (number,), True, outer.frames
        )
        return replace(copied, body=(op,), taken=(replace(outer.taken[0], inside=number),))

    return replace(graph, root=call(graph.root), facts=facts)


def _exact(outer: Call, modules: Mapping[str, torch.nn.Module]) -> Call:
    """A call whose dropouts have the modules' own rates: 1 minus the kept fraction was rounded."""

    def item_of(item: Any) -> Any:
        if isinstance(item, Call):
            return _exact(item, modules)
        if not is_dropout(item):
            return item
        value, rate, *rest = item.arguments
        held = vars(modules[item.arguments[3] or outer.path]).values()
        near = [each for each in held if isinstance(each, float) and math.isclose(each, rate)]
        return replace(item, arguments=(value, *(near[:1] or [rate]), *rest))

    return replace(outer, body=tuple(map(item_of, outer.body)))


def _attribute(path: str, modules: Mapping[str, torch.nn.Module]) -> tuple[type, str]:
    above, _, name = path.rpartition(".")
    return type(modules[above]), name

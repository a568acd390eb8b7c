"""Masks of attention: which inputs are masks, and transformers' masks by broadcasting."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from converters.graph.ir import Apply, Call, Fact, Given, Graph, Op, Ref, references

# Where the mask of an attention stands among the arguments of its operator.
_MASKED = {"scaled_dot_product_attention": 3, "baddbmm": 0, "masked_fill": 1, "where": 0}
# Operators after which numbers are no masks any more: lookups and products of weights.
_COMPUTED = re.compile(
    r"embedding|linear|matmul|mm|\w*bmm|addmm|einsum|conv\w*|index\w*|gather|take\w*"
)
# Operators that keep every score where it is: what they are given is looked at.
_SCORES = {
    *("_to_copy", "to", "view", "reshape", "_unsafe_view", "div", "mul", "clone", "expand"),
    *("choice", "dropout"),
}


@contextmanager
def broadcast_masks() -> Iterator[None]:
    """Build masks from all indices at once, where that equals building them one index at a time.

    A recorded torch.vmap leaves no side free.
    Whether it does is checked when the model runs before it is recorded.
    """
    masking: Any = sys.modules.get("transformers.masking_utils")
    table: Any = getattr(getattr(masking, "AttentionMaskInterface", None), "_global_mapping", None)
    usual: Any = table.get("sdpa") if isinstance(table, dict) else None
    if usual is None:
        yield
        return
    differ: list[Any] = []

    @functools.wraps(usual)
    def sdpa_mask(*args: Any, use_vmap: bool = False, **named: Any) -> Any:
        if use_vmap and not differ:
            if torch.compiler.is_exporting() or torch.compiler.is_compiling():
                return usual(*args, use_vmap=False, **named)
            wanted = usual(*args, use_vmap=True, **named)
            if not _agrees(usual, args, named, wanted):
                differ.append(named)
            return wanted
        return usual(*args, use_vmap=use_vmap, **named)

    table["sdpa"] = sdpa_mask
    try:
        yield
    finally:
        table["sdpa"] = usual


def _agrees(usual: Any, args: Any, named: Any, wanted: Any) -> bool:
    try:
        broadcast = usual(*args, use_vmap=False, **named)
    except (RuntimeError, IndexError, TypeError, ValueError):
        return False
    if broadcast is None or wanted is None:
        return broadcast is wanted
    return torch.equal(broadcast, wanted)


def attention_masks(graph: Graph) -> frozenset[str]:
    """Names of inputs from which masks of attentions are made, with nothing else but constants and buffers.

    Only inputs of booleans and integers can be masks. Whether integers are 0 and 1, values tell.
    """
    walk = _Sources(graph)
    names = {
        number: name
        for name, number in graph.inputs
        if _is_whole(graph.facts[number]) and len(graph.facts[number].shape) > 1
    }
    masked: set[int] = set()
    for masks in walk.masks():
        if masks and masks <= names.keys():
            masked |= masks
    return frozenset(names[number] for number in masked)


def _is_whole(fact: Fact) -> bool:
    return not fact.dtype.is_floating_point and not fact.dtype.is_complex


class _Sources:
    """Inputs of the model from which each tensor is computed; -1 is among those of features."""

    def __init__(self, graph: Graph) -> None:
        self.of: dict[int, frozenset[int]] = {n: frozenset({n}) for _, n in graph.inputs}
        self.producers: dict[int, Op] = {}
        self.same: dict[int, Any] = {}
        self.read: list[Op] = []
        self._visit(graph.root)

    def _visit(self, outer: Call | Apply) -> None:
        for argument in outer.arguments:
            if isinstance(argument, Given) and argument.value != Ref(argument.inside):
                self.of[argument.inside] = self.sources(argument.value)
                self.same[argument.inside] = argument.value
        for item in outer.body:
            if isinstance(item, Op):
                self.read.append(item)
                sources = self.sources((item.arguments, item.named))
                if _COMPUTED.fullmatch(item.target.split(".")[1]):
                    sources |= {-1}
                for out in item.outs:
                    self.of[out], self.producers[out] = sources, item
            else:
                self._visit(item)
        for result in outer.taken if isinstance(outer, Call) else ():
            if result.outside != result.inside:
                self.of[result.outside] = self.of.get(result.inside, frozenset())
                self.same[result.outside] = Ref(result.inside)

    def sources(self, value: Any) -> frozenset[int]:
        of = (self.of.get(reference.id, frozenset()) for reference in references(value))
        return frozenset[int]().union(*of)

    def masks(self) -> Iterator[frozenset[int]]:
        """The inputs of each tensor that masks the scores of an attention."""
        for item in self.read:
            packet = item.target.split(".")[1]
            if packet == "scaled_dot_product_attention":
                yield self.sources(_argument(item, "attn_mask", _MASKED[packet]))
            elif packet in ("_softmax", "softmax", "_safe_softmax"):
                yield from self._of_scores(item.arguments[0])

    def _of_scores(self, value: Any) -> Iterator[frozenset[int]]:
        while isinstance(value, Ref) and value.id in self.same:
            value = self.same[value.id]
        item = self.producers.get(value.id) if isinstance(value, Ref) else None
        if item is None:
            return
        packet = item.target.split(".")[1]
        if packet in _MASKED:
            yield self.sources(item.arguments[_MASKED[packet]])
        elif packet in ("add", "sub"):
            yield from map(self.sources, item.arguments[:2])
        if packet in _MASKED or packet in ("add", "sub") or packet in _SCORES:
            for operand in item.arguments:
                yield from self._of_scores(operand)


def _argument(item: Op, name: str, place: int) -> Any:
    return item.named.get(name, item.arguments[place] if len(item.arguments) > place else None)

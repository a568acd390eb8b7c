"""Operators that change nothing: their input stands for their result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from converters.graph.ir import Fact, Held, Ref, size_of
from converters.graph.recording.one_rank import keeps_its_input

# Always the tensor itself, when no gradient is taken and nothing changes in place.
_SAME = {
    f"aten.{name}.default"
    for name in (
        "alias",
        "detach",
        "detach_",
        "clone",
        "contiguous",
        "lift_fresh_copy",
        "lift_fresh",
        "lift",
        "resolve_conj",
        "resolve_neg",
        "positive",
    )
}
# The tensor itself if the dtype stays.
_CASTS = {
    "aten._to_copy.default",
    "aten.to.dtype",
    "aten.to.dtype_layout",
    "aten.to.device",
    "aten.to.other",
    "aten.type_as.default",
}
# The tensor itself if the shape stays.
_SHAPES = {
    "aten.expand.default",
    "aten.expand_as.default",
    "aten.view.default",
    "aten.reshape.default",
    "aten._unsafe_view.default",
    "aten.view_as.default",
    "aten.slice.Tensor",
    "aten.flatten.using_ints",
    "aten.squeeze.default",
    "aten.squeeze.dim",
    "aten.squeeze.dims",
}
# Neutral second arguments: x stays x.
_NEUTRAL = {
    "aten.add.Tensor": 0,
    "aten.add.Scalar": 0,
    "aten.sub.Tensor": 0,
    "aten.mul.Tensor": 1,
    "aten.mul.Scalar": 1,
    "aten.div.Tensor": 1,
}
_DROPOUTS = {
    "aten.dropout.default",
    "aten.feature_dropout.default",
    "aten.alpha_dropout.default",
    "aten.feature_alpha_dropout.default",
    "aten.native_dropout.default",
}


def same_as(
    name: str,
    arguments: tuple[Any, ...],
    named: Mapping[str, Any],
    fact: Callable[[Any], Fact | None],
    value: Any,
) -> Any:
    """The result of an operator that computes nothing; None if it computes.

    Args:
        name: name of the operator.
        arguments: its arguments.
        named: its keyword arguments.
        fact: a tensor's shape and dtype.
        value: torch's metadata of the result.
    """
    first = arguments[0] if arguments else None
    if name == "aten.broadcast_tensors.default" and isinstance(first, tuple):
        facts = [fact(tensor) for tensor in first]
        return (
            first
            if None not in facts
            and len({tensor_fact and tensor_fact.shape for tensor_fact in facts}) == 1
            else None
        )
    if not isinstance(first, Ref | Held):
        return None
    if name in _SAME:
        return first
    if keeps_its_input(name, arguments):
        return first
    if name in _DROPOUTS and (not arguments[2] or not arguments[1]):
        return first if name != "aten.native_dropout.default" else None
    before = fact(first)
    if before is None or (isinstance(first, Held) and name not in _SHAPES):
        return None
    if name in _NEUTRAL and before.dtype == value.dtype and named.get("alpha", 1) == 1:
        other = arguments[1]
        if isinstance(other, int | float) and other == _NEUTRAL[name]:
            return first
    if name in _CASTS and before.dtype == value.dtype:
        return first
    if name == "aten.copy.default" and isinstance(arguments[1], Ref | Held):
        source = fact(arguments[1])
        whole = source is not None and (source.shape, source.dtype) == (before.shape, before.dtype)
        return arguments[1] if whole else None
    if name in _SHAPES and len(before.shape) == value.dim() and _equal(before, value):
        # A slice with steps, or one that reverses, never keeps the shape unless it is of one element.
        return first
    return None


def _equal(before: Fact, value: Any) -> bool:
    return tuple(before.shape) == tuple(size_of(side) for side in value.shape)

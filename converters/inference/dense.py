"""Guesses for a `weight` of two axes: Linear (transposed in Flax), GPT-2's Conv1D or Embedding
(unchanged)."""

from __future__ import annotations

from converters.inference.context import Context
from converters.inference.groups import Group
from converters.inference.guess import CONV1D, NORM, PARAMETER, Guess, ambiguous, certain, likely
from converters.inference.words import (
    ROUTER_NAMES,
    ends_as_embedding,
    ends_as_linear,
    is_embedding_name,
    is_linear_name,
    is_lookup_name,
    own_name,
)

_LORA = ("lora_A", "lora_B")
_LORA_EMBEDDING = "lora_embedding_"
_BASE = "base_layer"


def guess_dense(group: Group, context: Context) -> Guess:
    """Return the guess for a group with a `weight` of two axes."""
    weight, bias = group.shape("weight"), group.shape("bias")
    assert weight is not None
    extra = sorted(set(group.plain) - {"weight", "bias"})
    if own_name(group.path).lower() in ROUTER_NAMES:
        return ambiguous("a router is a Linear here, a bare parameter there", "Linear", PARAMETER)
    if extra:
        what = f"beside its weight there is {', '.join(extra)}: no layer of torch.nn"
        return ambiguous(what, "Linear", "Embedding", PARAMETER)
    if bias is None:
        return _of_adapter(group, context) or _by_name(group, context)
    if bias == weight:
        return likely(NORM, "weight and bias have the same two axes")
    rows, columns = weight
    if bias == (rows,) != (columns,):
        return certain("Linear", f"the bias is as long as the weight's first axis, {rows}")
    if bias == (columns,) != (rows,):
        return certain(CONV1D, f"the bias is as long as the weight's second axis, {columns}")
    if bias == (rows,):
        return _square(group, context)
    what = f"a bias of {bias} fits neither axis of {weight}"
    return ambiguous(what, "Linear", CONV1D, PARAMETER)


def _of_adapter(group: Group, context: Context) -> Guess | None:
    """Return the guess from a PEFT adapter, for its own weights and for the layer that it wraps.

    A Linear's `lora_A` and `lora_B` are Linears; an Embedding's are bare parameters,
    `lora_embedding_A` and `_B`.
    """
    parent, _, name = group.path.rpartition(".")
    layer, _, outer = parent.rpartition(".")
    weight = group.shape("weight") or ()
    for owner, part in ((parent, name), (layer, outer)):  # lora_A.weight, lora_A.default.weight
        if part in _LORA:
            return certain(
                "Linear", f"{part} of {owner or 'the model'}: a Linear, as PEFT makes it"
            )
    if name != _BASE:
        return None
    beside = f"{parent}." if parent else ""
    shapes = {
        f"{path}.{tensor}".removeprefix(beside): info.shape
        for path, other in context.groups.items()
        if f"{path}.".startswith(beside)
        for tensor, info in other.tensors.items()
    }
    if any(key.startswith(_LORA_EMBEDDING) for key in shapes):
        return certain("Embedding", "the lora_embedding_A and lora_embedding_B beside it")
    first, second = (
        next((shape for key, shape in shapes.items() if key.split(".")[0] == part), ())
        for part in _LORA
    )
    if len(first) == len(second) == 2 and weight == (second[0], first[1]):
        if weight[0] != weight[1]:
            return certain("Linear", "the shapes of lora_A and lora_B beside it")
        return likely("Linear", "the lora_A and lora_B beside it; a square weight without a bias")
    if len(first) == len(second) == 2 and weight == (first[1], second[0]):
        return certain(CONV1D, "the shapes of lora_A and lora_B beside it")
    return None


def _square(group: Group, context: Context) -> Guess:
    """Guess a square weight with a bias: other layers of the checkpoint show which axis is the output's."""
    alike = context.like(group.path)
    name = own_name(group.path)
    if alike[CONV1D] and not alike["Linear"]:
        return likely(
            CONV1D, f"a square weight with a bias; other {name} are Conv1D by their shapes"
        )
    if alike["Linear"] and not alike[CONV1D]:
        return likely(
            "Linear", f"a square weight with a bias; other {name} are Linear by their shapes"
        )
    if context.has_certain(CONV1D):
        what = "a square weight with a bias, in a checkpoint that has both Linear and Conv1D"
        return ambiguous(what, "Linear", CONV1D)
    return likely("Linear", "a square weight with a bias; nothing in the checkpoint is a Conv1D")


def _by_name(group: Group, context: Context) -> Guess:
    name = own_name(group.path)
    linear, embedding = is_linear_name(name), is_embedding_name(name)
    if embedding and ends_as_linear(name):
        embedding = False  # the projection of an embedding
    if linear and ends_as_embedding(name):
        linear = False  # the embedding of a score
    if linear and not embedding:
        return likely("Linear", f"the name {name}, no bias")
    tied = sorted(
        other
        for other in context.shared.get(group.key("weight"), ())
        if is_linear_name(own_name(other.rpartition(".")[0]))
    )
    rows, columns = group.shape("weight") or (0, 0)
    if embedding and not linear:
        looked_up = tied or is_lookup_name(name) or columns in context.widths
        if rows in context.widths and not looked_up:
            what = f"the name {name}; but its rows, {rows}, are as many as the model has channels"
            return ambiguous(what, "Embedding", "Linear")
        also = f", tied to {tied[0]}" if tied else ""
        return likely("Embedding", f"the name {name}, no bias{also}")
    if tied:
        return likely("Embedding", f"no bias, tied to {tied[0]}")
    what = f"the name {name} shows neither" if name else "no name"
    return ambiguous(f"two axes, no bias; {what}", "Linear", "Embedding")

"""Guess for one group: the user's assumption, or the recognizer for its names and axes."""

from __future__ import annotations

from collections.abc import Iterable

from converters.inference.assume import AS_THEY_ARE, CONTAINERS, Assumption
from converters.inference.attention import KIND as ATTENTION
from converters.inference.attention import guess_attention, with_heads
from converters.inference.context import Context
from converters.inference.conv import TRANSPOSED, guess_conv
from converters.inference.dense import guess_dense
from converters.inference.groups import Group
from converters.inference.guess import (
    CONV1D,
    NORM,
    PARAMETER,
    Confidence,
    Guess,
    ambiguous,
    certain,
    likely,
)
from converters.inference.plain import guess_batch_norm, guess_norm, guess_parameters
from converters.inference.recurrent import guess_recurrent


def recognize(group: Group, context: Context) -> Guess:
    """Return the guess for a group without assumptions."""
    for guess in (
        guess_attention(group, context),
        guess_recurrent(group),
        guess_batch_norm(group),
    ):
        if guess is not None:
            return guess
    weight = group.shape("weight")
    if weight is None:
        return guess_parameters(group)
    if len(weight) < 2:
        return guess_norm(group)
    if len(weight) > 5:
        return certain(PARAMETER, f"{len(weight)} axes, which no layer of torch.nn has")
    bias = group.shape("bias")
    if bias == weight and weight[0] == 1:
        return certain(PARAMETER, "weight and bias have the same axes: unchanged")
    if len(weight) == 2:
        return guess_dense(group, context)
    if bias == weight:
        return likely(NORM, f"weight and bias have the same {len(weight)} axes")
    return guess_conv(group, context)


def learn(context: Context) -> None:
    """Go through all groups, first for those whose shapes alone decide the kind, then for likely ones."""
    open_groups = [
        group
        for group in context.groups.values()
        if (weight := group.shape("weight")) is not None and 2 <= len(weight) <= 5
    ]
    for group in open_groups:
        guess = recognize(group, context)
        if guess.confidence is Confidence.CERTAIN:
            context.learn(group.path, guess.kind)
    for group in open_groups:
        guess = recognize(group, context)
        if guess.confidence is Confidence.LIKELY:
            context.suspect(group.path, guess.kind)


def assumed(group: Group, assumption: Assumption, context: Context) -> Guess:
    """Return the guess for a group whose kind is assumed; its rank comes from the shape."""
    options, _ = context.assumptions.options_for(group.path)
    options = dict(assumption.options) | {
        name: value for name, value in options.items() if name not in assumption.options
    }
    kind = assumption.kind
    evidence = f"--assume {assumption.text}"
    if kind in AS_THEY_ARE:
        return Guess(kind, Confidence.ASSUMED, evidence)
    if kind == ATTENTION:
        if "out_proj.weight" not in group.tensors:
            return ambiguous(f"assumed to be {kind}, but it has no out_proj.weight", PARAMETER)
        if "heads" not in options:
            return with_heads(group, context)
        return Guess(kind, Confidence.ASSUMED, evidence, {"heads": options["heads"]})
    if kind in ("LSTM", "GRU", "RNN"):
        guess = guess_recurrent(group)
        if guess is None or guess.kind.removesuffix("Cell") != kind:
            return ambiguous(f"assumed to be {kind}, which its names and shapes are not", PARAMETER)
        return guess
    weight = group.shape("weight")
    if weight is None:
        return ambiguous(f"assumed to be {kind}, but it has no weight", PARAMETER)
    if kind in ("Conv", TRANSPOSED):
        if kind == TRANSPOSED and "groups" not in options:
            options["groups"] = _groups(group)
        kind = f"{kind}{len(weight) - 2}d"
    return Guess(kind, Confidence.ASSUMED, evidence, options)


def _groups(group: Group) -> int:
    """Return the groups of a transposed convolution, according to its bias; 1 without a bias."""
    weight, bias = group.shape("weight"), group.shape("bias")
    if weight is None or len(weight) < 2 or not bias or bias[0] % weight[1]:
        return 1
    return bias[0] // weight[1]


def splits(group: Group, assumption: Assumption) -> tuple[Iterable[str], Iterable[str]]:
    """Return the names that an assumption is about, and the rest: all, unless it matches keys and not
    the path."""
    if assumption.matches(group.path):
        return tuple(group.tensors), ()
    matching = tuple(name for name in group.tensors if assumption.matches(group.key(name)))
    return matching, tuple(name for name in group.tensors if name not in matching)


def is_container(assumption: Assumption) -> bool:
    """Whether the assumption is about the container of numbered children, not a layer."""
    return assumption.kind in CONTAINERS


__all__ = ["CONV1D", "assumed", "is_container", "learn", "recognize", "splits"]

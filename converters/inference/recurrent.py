"""LSTM, GRU and RNN, and their cells, whose names and shapes determine all settings."""

from __future__ import annotations

import re

from converters.inference.groups import Group
from converters.inference.guess import PARAMETER, Guess, ambiguous, certain

GATES = {1: "RNN", 3: "GRU", 4: "LSTM"}
_NAME = re.compile(r"(weight_ih|weight_hh|weight_hr|bias_ih|bias_hh)_l(\d+)(_reverse)?")
_CELL = {"weight_ih", "weight_hh", "bias_ih", "bias_hh"}


def guess_recurrent(group: Group) -> Guess | None:
    """Return the recurrent layer that a group is; None if it has none of the tensors."""
    if "weight_ih_l0" in group.tensors and "weight_hh_l0" in group.tensors:
        return _layer(group)
    if {"weight_ih", "weight_hh"} <= set(group.tensors) <= _CELL:
        return _cell(group)
    return None


def _layer(group: Group) -> Guess:
    names = set(group.tensors)
    if not all(_NAME.fullmatch(name) for name in names):
        return ambiguous("a recurrent layer with more than torch's has", *GATES.values(), PARAMETER)
    first, hidden = group.tensors["weight_ih_l0"].shape, group.tensors["weight_hh_l0"].shape
    projection = group.tensors.get("weight_hr_l0")
    if len(first) != 2 or len(hidden) != 2 or (projection and len(projection.shape) != 2):
        return ambiguous("weights that have not two axes", PARAMETER)
    size = projection.shape[1] if projection else hidden[1]
    kind = GATES.get(first[0] // size) if size and first[0] % size == 0 else None
    if kind is None:
        return ambiguous(f"{first[0]} rows are no multiple by 1, 3 or 4 of {size}", PARAMETER)
    layers = 1 + max(int(match[2]) for match in map(_NAME.fullmatch, names) if match)
    both = any(name.endswith("_reverse") for name in names)
    evidence = f"{first[0] // size} gates of {size}, layers: {layers}"
    return certain(
        kind,
        evidence + (", both directions" if both else ""),
        input=first[1],
        hidden=size,
        layers=layers,
        bidirectional=int(both),
        bias=int("bias_ih_l0" in names),
        projection=projection.shape[0] if projection else 0,
    )


def _cell(group: Group) -> Guess:
    first, hidden = group.tensors["weight_ih"].shape, group.tensors["weight_hh"].shape
    if len(first) != 2 or len(hidden) != 2 or not hidden[1]:
        return ambiguous("weights that have not two axes", PARAMETER)
    kind = GATES.get(first[0] // hidden[1]) if first[0] % hidden[1] == 0 else None
    if kind is None:
        return ambiguous(f"{first[0]} rows are no multiple by 1, 3 or 4 of {hidden[1]}", PARAMETER)
    evidence = f"{first[0] // hidden[1]} gates of {hidden[1]}"
    bias = int("bias_ih" in group.tensors)
    return certain(f"{kind}Cell", evidence, input=first[1], hidden=hidden[1], bias=bias)

"""Outputs of a dump, by path and input, in the truth's layout."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from migrate.parity.dump.dump import Dump, TensorRef
from migrate.parity.ground.alignment import TensorPair
from migrate.parity.ground.errors import ParityError
from migrate.parity.inputs.set import attended
from migrate.parity.tasks.party import Parties

Array = np.ndarray[Any, Any]


def ref_of(dump: Dump, number: int, path: str) -> TensorRef | None:
    """Reference to an output for an input."""
    return next((ref for ref in dump.outputs.get(number, ()) if ref.path == path), None)


def output(dump: Dump, number: int, path: str) -> Array:
    """Return the values of an output.

    Raises:
        ParityError: this input has no such output.
    """
    ref = ref_of(dump, number, path)
    if ref is None:
        raise ParityError(
            f"{dump.facts.target}: input {number} has no output {path or 'at the top'}",
            "use inputs for which the model returns the same outputs",
        )
    return dump.tensor(ref)


def as_truth(pair: TensorPair, mine: Array, shape: tuple[int, ...]) -> Array:
    """Convert a side's array to the truth's layout and shape: the inverse of `TensorPair.as_mine`."""
    before = pair.split or shape
    if pair.axes is None:
        return mine.reshape(shape) if (pair.shape or pair.split) is not None else mine
    if pair.shape is not None:
        mine = mine.reshape(tuple(before[axis] for axis in pair.axes))
    mine = mine.transpose(np.argsort(pair.axes))
    return mine.reshape(shape) if pair.split is not None else mine


def positions(parties: Parties, number: int, shape: tuple[int, ...]) -> Array:
    """Mask of the positions [batch, length, …] of an output that are no padding, flat; all without a
    mask.
    """
    mask = attended(parties.inputs).get(number)
    if mask is None or len(shape) < 2 or mask.shape != shape[:2]:
        return np.ones(math.prod(shape), bool)
    return np.broadcast_to(mask.reshape(*mask.shape, *(1,) * (len(shape) - 2)), shape).reshape(-1)


def floating_outputs(dump: Dump) -> Iterator[str]:
    """Paths of the first input's outputs that gradients can be taken of."""
    for ref in dump.outputs.get(0, ()):
        if "float" in ref.dtype:
            yield ref.path


def compared_outputs(parties: Parties) -> list[str]:
    """Paths of the truth's floating outputs that both sides have."""
    return [
        path
        for path in floating_outputs(parties.truth.dump)
        if all(party.pair(path) is not None for party in parties.sides)
    ]


def logits_path(dump: Dump, named: str | None = None) -> str | None:
    """Return the path of the output with logits: the named output, else one called logits; None: none.

    Raises:
        ParityError: the model has no output of that name.
    """
    paths = list(floating_outputs(dump))
    if named is not None:
        if named not in paths:
            known = ", ".join(path or "the whole" for path in paths)
            raise ParityError(f"there is no output {named} with logits", f"it has: {known}")
        return named
    return next((path for path in paths if path.split(".")[-1].endswith("logits")), None)

"""Moments of a torch optimizer as arrays, each arranged like its weight, and their groups and steps.

Which state tensors an optimizer has is in `kinds.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from converters.checkpoint.dtypes import torch_to_numpy
from converters.errors import OptimizerError
from converters.layers.join import SUM
from converters.mapping.leaves import PlannedLeaf
from converters.optimizer.kinds import Kind, number
from converters.optimizer.torch_state import TorchOptimizer

Array = np.ndarray[Any, Any]

FROZEN = "frozen"
# torch computes the same gradient for both biases; its kernels may sum it in another order.
_EQUAL = 1e-5


@dataclass(frozen=True)
class Labeled:
    """Array of the pytree, and the part of the optimizer that updates it.

    Attributes:
        leaf: the array.
        label: "group0", "group0_step40_sum2", or "frozen".
        group: the number of the torch group; -1 if frozen.
        step: the number of steps of its parameters; None if torch does not count.
        terms: the number of torch tensors in the sum; 1 if it is not a sum.
    """

    leaf: PlannedLeaf
    label: str
    group: int
    step: int | None
    terms: int


def label_leaves(
    optimizer: TorchOptimizer,
    kind: Kind,
    leaves: Iterable[PlannedLeaf],
    position_of: Mapping[str, int],
) -> list[Labeled]:
    """Return every parameter array with its label.

    Raises:
        OptimizerError: the pieces of an array are in several groups or at several steps, or the
            array is a sum whose terms move differently; the message names all of them.
    """
    problems: list[str] = []
    labeled: list[Labeled] = []
    for leaf in leaves:
        positions = {
            piece.key: position_of[piece.key] for piece in leaf.pieces if piece.key in position_of
        }
        active = {
            key: position
            for key, position in positions.items()
            if _is_trained(optimizer, position, kind)
        }
        if not active:
            labeled.append(Labeled(leaf, FROZEN, -1, None, 1))
            continue
        if len(active) < len({piece.key for piece in leaf.pieces}):
            problems.append(f"{leaf.path}: only some of its tensors were trained")
            continue
        if any(piece.layout.computes for piece in leaf.pieces):
            # For a weight times c the gradient is divided by c, which leads to another step.
            problems.append(f"{leaf.path}: a number is folded into its weights")
            continue
        groups = {optimizer.group_of(position) for position in active.values()}
        steps = {_step(optimizer, position) for position in active.values()}
        if len(groups) > 1 or len(steps) > 1:
            problems.append(f"{leaf.path}: its tensors are in several groups or at several steps")
            continue
        terms = len(leaf.pieces) if leaf.join == SUM else 1
        reason = _difference_of_terms(optimizer, kind, leaf, active) if terms > 1 else ""
        if reason:
            problems.append(f"{leaf.path}: {reason}")
            continue
        labeled.append(Labeled(leaf, "", groups.pop(), steps.pop(), terms))
    if problems:
        shown = ", ".join(problems[:8]) + (
            f" and {len(problems) - 8} more" if len(problems) > 8 else ""
        )
        raise OptimizerError(
            f"{optimizer.source}: {shown}",
            "convert to a layout whose arrays hold one torch tensor each",
        )
    return _labeled(labeled)


def _labeled(arrays: Sequence[Labeled]) -> list[Labeled]:
    """Return the shortest labels that distinguish the groups, steps and sums."""
    steps: dict[int, set[int | None]] = {}
    for array in arrays:
        steps.setdefault(array.group, set()).add(array.step)
    named = []
    for array in arrays:
        label = array.label or f"group{array.group}"
        if array.label != FROZEN and len(steps[array.group]) > 1:
            label += f"_step{array.step}"
        if array.terms > 1:
            label += f"_sum{array.terms}"
        named.append(Labeled(array.leaf, label, array.group, array.step, array.terms))
    return named


def moment_arrays(
    optimizer: TorchOptimizer,
    kind: Kind,
    labeled: Iterable[Labeled],
    position_of: Mapping[str, int],
) -> dict[str, Array]:
    """Return name → array: `mu/params/dense/kernel`, `count/group0`; for Adafactor `row/dense.weight`."""
    arrays: dict[str, Array] = {}
    for item in labeled:
        if item.label == FROZEN:
            continue
        if item.step is not None or kind.moments.get("exp_avg") == "mu":
            arrays[f"count/{item.label}"] = np.asarray(item.step or 0, np.int32)
        entries = {
            piece.key: optimizer.state.get(position_of[piece.key], {}) for piece in item.leaf.pieces
        }
        for torch_name, name in kind.moments.items():
            tensors = {
                key: torch_to_numpy(value[torch_name], f"{key}: {torch_name}")
                for key, value in entries.items()
                if value.get(torch_name) is not None
            }
            if not tensors:
                continue
            if not kind.elementwise:
                arrays |= {f"{name}/{key}": tensor for key, tensor in tensors.items()}
            elif item.terms > 1:  # the terms' moments are equal: those of the sum's gradient
                arrays[f"{name}/{item.leaf.path}"] = item.leaf.pieces[0].take(
                    tensors[item.leaf.pieces[0].key]
                )
            else:
                arrays[f"{name}/{item.leaf.path}"] = item.leaf.read(tensors.__getitem__)
    return arrays


def _is_trained(optimizer: TorchOptimizer, position: int, kind: Kind) -> bool:
    """Whether a parameter ever had a gradient; SGD without momentum keeps no trace."""
    entries = optimizer.state.get(position, {})
    if any(entries.get(name) is not None for name in kind.moments):
        return True
    group = optimizer.groups[optimizer.group_of(position)]
    return kind.name == "sgd" and not number(group["momentum"])


def _step(optimizer: TorchOptimizer, position: int) -> int | None:
    step = optimizer.state.get(position, {}).get("step")
    return None if step is None else int(number(step))


def _difference_of_terms(
    optimizer: TorchOptimizer, kind: Kind, leaf: PlannedLeaf, positions: Mapping[str, int]
) -> str:
    """Return why the terms of a sum do not move like one array, or ""."""
    if not kind.elementwise:
        return f"a sum of {len(leaf.pieces)} tensors, which Adafactor scales each by its own size"
    group = optimizer.groups[optimizer.group_of(next(iter(positions.values())))]
    if kind.coupled and number(group["weight_decay"]):
        return f"a sum of {len(leaf.pieces)} tensors, whose weight decay enters the moments"
    for name in kind.moments:
        values = [optimizer.state.get(positions[piece.key], {}).get(name) for piece in leaf.pieces]
        taken = [
            piece.take(torch_to_numpy(value, name))
            for piece, value in zip(leaf.pieces, values, strict=True)
            if value is not None
        ]
        if any(not np.allclose(moment, taken[0], rtol=_EQUAL, atol=0) for moment in taken[1:]):
            return f"a sum of {len(leaf.pieces)} tensors, whose moments ({name}) differ"
    return ""

"""Conditions that select arrays of the written tree: by axes, by a part of their path, or by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from migrate.train.optimizer.recorded import ParameterArray

_MOST_PARTS = 6  # more names are no rule: the arrays are then listed


@dataclass(frozen=True)
class Selection:
    """Condition on an array.

    Attributes:
        text: expression of `p`, the array, or of `name`, its `/`-joined path.
        by_name: whether it reads the name.
    """

    text: str
    by_name: bool


def select(chosen: Sequence[ParameterArray], others: Sequence[ParameterArray]) -> Selection:
    """Return the shortest condition that holds for the chosen arrays and for none of the others."""
    return (
        _by_axes(chosen, others)
        or _by_end(chosen, others)
        or _by_start(chosen, others)
        or Selection(f"name in {sorted(map(name_of, chosen))!r}", True)
    )


def name_of(array: ParameterArray) -> str:
    """Return the `/`-joined path."""
    return "/".join(array.path)


def _by_axes(
    chosen: Sequence[ParameterArray], others: Sequence[ParameterArray]
) -> Selection | None:
    ours, theirs = [a.ndim for a in chosen], [a.ndim for a in others]
    if not theirs:
        return None
    if min(ours) > max(theirs):
        return Selection(f"p.ndim >= {min(ours)}", False)
    if max(ours) < min(theirs):
        return Selection(f"p.ndim < {min(theirs)}", False)
    return None


def _by_end(chosen: Sequence[ParameterArray], others: Sequence[ParameterArray]) -> Selection | None:
    ends = sorted({array.path[-1] for array in chosen})
    if {array.path[-1] for array in others} & set(ends) or len(ends) > _MOST_PARTS:
        return None
    if len(ends) == 1:
        return Selection(f'name.split("/")[-1] == {ends[0]!r}', True)
    return Selection(f'name.split("/")[-1] in {tuple(ends)!r}', True)


def _by_start(
    chosen: Sequence[ParameterArray], others: Sequence[ParameterArray]
) -> Selection | None:
    for depth in range(1, max(len(array.path) for array in chosen) + 1):
        starts = sorted({"/".join((*array.path, "")[:depth]) + "/" for array in chosen})
        if len(starts) > _MOST_PARTS:
            return None
        if not any(f"{name_of(other)}/".startswith(tuple(starts)) for other in others):
            shown = repr(starts[0]) if len(starts) == 1 else repr(tuple(starts))
            return Selection(f'f"{{name}}/".startswith({shown})', True)
    return None

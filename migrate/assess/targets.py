"""Manual work for each package that drives the TPU, and which of them needs less."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from migrate.assess.facts import AssessmentFacts, Code, Todo
from migrate.assess.hours import Hours
from migrate.catalogue.target import TPU, XLA, Target


@dataclass(frozen=True)
class TargetEffort:
    """Manual work that the rewrite for a target leaves.

    Attributes:
        target: name of the package.
        code: result of the rewrite.
        hours: assumed hours, setup included.
        only: manual work that the other target does not need.
    """

    target: Target
    code: Code
    hours: float
    only: tuple[Todo, ...]


def efforts(known: AssessmentFacts, hours: Hours) -> tuple[TargetEffort, ...]:
    """Return the work for torch_xla and for torch_tpu."""
    return (
        _effort(XLA, known.code, known.code_on_tpu, hours),
        _effort(TPU, known.code_on_tpu, known.code, hours),
    )


def _effort(target: Target, code: Code, other: Code, hours: Hours) -> TargetEffort:
    there = {(todo.place, todo.work) for todo in other.by_hand}
    only = tuple(todo for todo in code.by_hand if (todo.place, todo.work) not in there)
    return TargetEffort(target, code, code.hours(hours), only)


def easier(targets: Sequence[TargetEffort]) -> Target | None:
    """Return the target that needs less by hand, None if both need the same.

    Work that keeps every run from a TPU decides, then the assumed hours.
    """
    first, second = sorted(targets, key=_weight)
    return first.target if _weight(first) < _weight(second) else None


def _weight(effort: TargetEffort) -> tuple[bool, float]:
    return bool(effort.code.blocking), effort.hours

"""Manual work for each package that drives the TPU, and which of them needs less."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from migrate.assess.facts import AssessmentFacts, Code, Todo
from migrate.assess.hours import Hours
from migrate.catalogue.target import TPU, XLA, Target

# Hours are assumptions: a smaller difference is none.
_SAME_HOURS = 0.5


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
    """Return the target that needs less by hand, None if both need about the same.

    Work that keeps every run from a TPU decides, then the assumed hours: half an hour less is no difference.
    """
    first, second = targets
    for effort, other in ((first, second), (second, first)):
        if _is_easier(effort, other):
            return effort.target
    return None


def _is_easier(effort: TargetEffort, other: TargetEffort) -> bool:
    blocked, also = bool(effort.code.blocking), bool(other.code.blocking)
    return blocked < also or (blocked == also and effort.hours + _SAME_HOURS < other.hours)

"""The optimizer has the same settings in each parameter group: momentum, weight decay, betas."""

from __future__ import annotations

from typing import Any

from migrate.prove.compare.compare import StepComparison, relative
from migrate.prove.compare.difference import Case, Difference, at_step, lines
from migrate.prove.compare.gates import GRADIENT_GATE
from migrate.prove.recording.records import RankRecord


def check(case: Case) -> Difference | None:
    """The first rank and group with another setting. What only one side's optimizer has is none."""
    for step in case.ranks:
        if not step.original.details.settings and not step.rewritten.details.settings:
            continue
        theirs, mine = (_known(side[step.rank], step) for side in (case.original, case.ours))
        for group, (one, other) in enumerate(zip(theirs, mine, strict=False)):
            for name in one.keys() & other.keys():
                if not _equal(one[name], other[name]):
                    what = (
                        f"{_named(name)} of parameter group {group} is {other[name]}, in the "
                        f"original {one[name]}{lines(step, 'optimizer')}"
                    )
                    return at_step("optimizer", step, what)
    return None


def _known(record: RankRecord, step: StepComparison) -> tuple[dict[str, Any], ...]:
    """The settings at a step: those that were last told, as only changes are."""
    known: tuple[dict[str, Any], ...] = ()
    for one in record.steps:
        if one.optimizer == step.optimizer and one.step <= step.step:
            known = one.details.settings or known
    return known


def _named(name: str) -> str:
    return "the number of parameters" if name == "parameters" else name


def _equal(theirs: Any, mine: Any) -> bool:
    if isinstance(theirs, list) and isinstance(mine, list):
        return len(theirs) == len(mine) and all(map(_equal, theirs, mine))
    if isinstance(theirs, int | float) and isinstance(mine, int | float):
        return (relative(float(theirs), float(mine)) or 0.0) <= GRADIENT_GATE
    return bool(theirs == mine)

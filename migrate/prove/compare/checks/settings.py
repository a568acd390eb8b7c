"""The optimizer has the same settings in each parameter group: momentum, weight decay, betas."""

from __future__ import annotations

from typing import Any

from migrate.prove.compare.compare import StepComparison, relative
from migrate.prove.compare.difference import Difference, StepCase, at_step, lines
from migrate.prove.compare.gates import GRADIENT_GATE
from migrate.prove.recording.records import RankRecord


def check(case: StepCase) -> Difference | None:
    """Return the first rank and group with another setting; a setting of only one side does not count."""
    for step in case.ranks:
        if not step.original.details.settings and not step.rewritten.details.settings:
            continue
        theirs, mine = (_settings_at(side[step.rank], step) for side in (case.original, case.ours))
        for group, (theirs_of_group, other) in enumerate(zip(theirs, mine, strict=False)):
            for name in theirs_of_group.keys() & other.keys():
                if not _equal(theirs_of_group[name], other[name]):
                    what = (
                        f"{_named(name)} of parameter group {group} is {other[name]}, in the "
                        f"original {theirs_of_group[name]}{lines(step, 'optimizer')}"
                    )
                    return at_step("optimizer", step, what)
    return None


def _settings_at(record: RankRecord, step: StepComparison) -> tuple[dict[str, Any], ...]:
    """Settings at a step: the last recorded ones, because only changes are recorded."""
    known: tuple[dict[str, Any], ...] = ()
    for earlier in record.steps:
        if earlier.optimizer == step.optimizer and earlier.step <= step.step:
            known = earlier.details.settings or known
    return known


def _named(name: str) -> str:
    return "the number of parameters" if name == "parameters" else name


def _equal(theirs: Any, mine: Any) -> bool:
    if isinstance(theirs, list) and isinstance(mine, list):
        return len(theirs) == len(mine) and all(map(_equal, theirs, mine))
    if isinstance(theirs, int | float) and isinstance(mine, int | float):
        return (relative(float(theirs), float(mine)) or 0.0) <= GRADIENT_GATE
    return bool(theirs == mine)

"""The learning rates of all parameter groups are equal."""

from __future__ import annotations

from migrate.prove.compare.compare import relative
from migrate.prove.compare.difference import Difference, StepCase, at_step, lines
from migrate.prove.compare.gates import GRADIENT_GATE


def check(case: StepCase) -> Difference | None:
    """Return the first rank with another learning rate or another number of groups."""
    for step in case.ranks:
        theirs, mine = step.original.learning_rates, step.rewritten.learning_rates
        if len(theirs) != len(mine):
            what = f"{len(mine)} parameter groups, in the original {len(theirs)}"
            return at_step("learning rate", step, what + lines(step, "optimizer"))
        for rate, ours in zip(theirs, mine, strict=True):
            if not _equal(rate, ours):
                what = f"the learning rate is {ours:g}, in the original {rate:g}"
                return at_step("learning rate", step, what + _cause(case, step.rank, step.step))
    return None


def _equal(theirs: float, mine: float) -> bool:
    return (relative(theirs, mine) or 0.0) <= GRADIENT_GATE


def _cause(case: StepCase, rank: int, number: int) -> str:
    """Explain whether the schedule runs ahead or behind, and where it is stepped."""
    (step,) = [comparison for comparison in case.ranks if comparison.rank == rank]
    scheduled = "scheduler" in step.original.details.lines or "scheduler" in (
        step.rewritten.details.lines
    )
    if number == 1 or not scheduled:
        return lines(step, "optimizer")
    mine = step.rewritten.learning_rates
    steps = [record for record in case.original[rank].steps if record.optimizer == step.optimizer]
    alike = [
        record.step
        for record in steps
        if len(record.learning_rates) == len(mine) and all(map(_equal, record.learning_rates, mine))
    ]
    if alike:
        nearest = min(alike, key=lambda number_alike: abs(number_alike - number))
        often = "more" if nearest > number else "less"
        return (
            f", which the original has at step {nearest}: scheduler.step() is called {often} often"
            + lines(step, "scheduler")
        )
    return lines(step, "scheduler")

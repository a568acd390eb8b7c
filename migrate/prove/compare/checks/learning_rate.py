"""The learning rates of all parameter groups are equal."""

from __future__ import annotations

from migrate.prove.compare.compare import relative
from migrate.prove.compare.difference import Case, Difference, at_step, lines
from migrate.prove.compare.gates import GRADIENT_GATE


def check(case: Case) -> Difference | None:
    """The first rank with another learning rate or another number of groups."""
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


def _cause(case: Case, rank: int, number: int) -> str:
    """Whether the schedule runs ahead or behind, and where it is stepped."""
    (step,) = [one for one in case.ranks if one.rank == rank]
    scheduled = "scheduler" in step.original.details.lines or "scheduler" in (
        step.rewritten.details.lines
    )
    if number == 1 or not scheduled:
        return lines(step, "optimizer")
    mine = step.rewritten.learning_rates
    steps = [one for one in case.original[rank].steps if one.optimizer == step.optimizer]
    alike = [
        one.step
        for one in steps
        if len(one.learning_rates) == len(mine) and all(map(_equal, one.learning_rates, mine))
    ]
    if alike:
        nearest = min(alike, key=lambda one: abs(one - number))
        often = "more" if nearest > number else "less"
        return (
            f", which the original has at step {nearest}: scheduler.step() is called {often} often"
            + lines(step, "scheduler")
        )
    return lines(step, "scheduler")

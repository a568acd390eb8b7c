"""Number of backward passes before the step."""

from __future__ import annotations

from migrate.prove.compare.difference import Difference, StepCase, at_step, lines


def check(case: StepCase) -> Difference | None:
    """Return the first rank with another number of backward passes."""
    for step in case.ranks:
        theirs, mine = len(step.original.losses), len(step.rewritten.losses)
        if theirs != mine:
            what = (
                f"{mine} backward passes before the step, in the original {theirs}: gradients are "
                f"accumulated up to another boundary{lines(step, 'backward')}{lines(step, 'step')}"
            )
            return at_step("accumulation", step, what)
    return None

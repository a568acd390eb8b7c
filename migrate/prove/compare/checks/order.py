"""The steps of several optimizers come in the same order."""

from __future__ import annotations

from migrate.prove.compare.difference import Difference, StepCase, at_step, lines


def check(case: StepCase) -> Difference | None:
    """Return the first rank whose step belongs to another optimizer."""
    for step in case.ranks:
        theirs, mine = step.original, step.rewritten
        if (theirs.optimizer, theirs.step) != (mine.optimizer, mine.step):
            return at_step(
                "order",
                step,
                f"the original takes step {theirs.step} of optimizer {theirs.optimizer}, the "
                f"rewrite step {mine.step} of optimizer {mine.optimizer}{lines(step, 'step')}",
            )
    return None

"""The losses of the backward passes are equal."""

from __future__ import annotations

from migrate.prove.compare import causes
from migrate.prove.compare.difference import Difference, StepCase, at_step


def check(case: StepCase) -> Difference | None:
    """Return the first rank with another loss."""
    for step in case.ranks:
        if (step.loss_difference or 0.0) <= case.gates.loss(step.optimizer, step.step):
            continue
        theirs, mine = step.original.loss, step.rewritten.loss
        what = f"loss {mine:.8g}, in the original {theirs:.8g}" + causes.of_losses(case, step)
        return at_step("loss", step, what, step.loss_difference)
    return None

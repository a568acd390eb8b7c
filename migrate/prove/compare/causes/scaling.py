"""Gradients off by a factor, which shows its origin: the ranks or the accumulation."""

from __future__ import annotations

from migrate.prove.compare.compare import StepComparison, relative
from migrate.prove.compare.difference import StepCase, lines


def cause(case: StepCase, step: StepComparison, theirs: float, mine: float) -> str | None:
    """Detect it by the ratio of the norms, and of the losses."""
    gate = case.gates.gradient(step.optimizer, step.step)
    passes = len(step.rewritten.losses)
    loss, other = step.original.loss, step.rewritten.loss
    for factor, what in (
        (passes, "is not divided by"),
        (1 / passes if passes else 0, "is divided once more by"),
    ):
        if passes > 1 and loss and other and _near(loss * factor, other, gate):
            return (
                f": the loss {what} the number of accumulated backward passes, {passes}"
                f"{lines(step, 'backward')}"
            )
    size = len(case.ranks)
    if size > 1 and _near(theirs * size, mine, gate):
        return (
            f": gradients are summed over the {size} ranks, not averaged{lines(step, 'backward')}"
        )
    if size > 1 and _near(theirs / size, mine, gate):
        return (
            f": gradients are divided by the {size} ranks once more than in the original"
            f"{lines(step, 'step')}"
        )
    return None


def _near(theirs: float, mine: float, gate: float) -> bool:
    return (relative(theirs, mine) or 0.0) <= gate

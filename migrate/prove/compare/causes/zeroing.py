"""Gradients of earlier steps are still there."""

from __future__ import annotations

from migrate.prove.compare.compare import StepComparison
from migrate.prove.compare.difference import Case, lines


def cause(case: Case, step: StepComparison) -> str | None:
    """A missing `zero_grad`: losses agree, gradients do not, from the second step on."""
    equal_losses = (step.loss_difference or 0.0) <= case.gates.loss(step.optimizer, step.step)
    if step.step == 1 or not equal_losses:
        return None
    cleared = step.original.details.zeroed, step.rewritten.details.zeroed
    told = lines(step, "zero_grad") if cleared[0] > cleared[1] else lines(step, "backward")
    return f", with equal losses: gradients of earlier steps are still there (is zero_grad missing?){told}"

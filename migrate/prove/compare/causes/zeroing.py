"""Gradients of earlier steps that were not cleared."""

from __future__ import annotations

from migrate.prove.compare.compare import StepComparison
from migrate.prove.compare.difference import StepCase, lines


def cause(case: StepCase, step: StepComparison) -> str | None:
    """Detect a missing `zero_grad`: losses agree, gradients do not, from the second step on."""
    equal_losses = (step.loss_difference or 0.0) <= case.gates.loss(step.optimizer, step.step)
    if step.step == 1 or not equal_losses:
        return None
    cleared = step.original.details.zeroed, step.rewritten.details.zeroed
    shown = lines(step, "zero_grad") if cleared[0] > cleared[1] else lines(step, "backward")
    return f", with equal losses: gradients of earlier steps are still there (is zero_grad missing?){shown}"

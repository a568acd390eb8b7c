"""Gradients of earlier steps that were not cleared.

They are as large as the gradients of the step, so a small difference of the norms has another cause.
"""

from __future__ import annotations

from migrate.prove.compare.compare import StepComparison
from migrate.prove.compare.difference import StepCase, lines
from migrate.prove.compare.gates import CEILING, SMALL


def cause(case: StepCase, step: StepComparison) -> str | None:
    """Detect a missing `zero_grad`: losses agree, gradients do not, from the second step on."""
    equal_losses = (step.loss_difference or 0.0) <= case.gates.loss(step.optimizer, step.step)
    if step.step == 1 or not equal_losses:
        return None
    size = step.gradient_difference or 0.0
    if step.original.details.zeroed > step.rewritten.details.zeroed and size >= SMALL:
        return (
            ", with equal losses: gradients of earlier steps are still there (is zero_grad missing?)"
            + lines(step, "zero_grad")
        )
    if size >= CEILING:
        return (
            ", with equal losses: the backward pass differs, or gradients of earlier steps are still there"
            + lines(step, "backward")
        )
    return None

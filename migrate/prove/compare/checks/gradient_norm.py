"""The gradients have the same norm, after clipping and before it."""

from __future__ import annotations

from migrate.prove.compare import causes
from migrate.prove.compare.compare import StepComparison, relative
from migrate.prove.compare.difference import Difference, StepCase, at_step, lines


def check(case: StepCase) -> Difference | None:
    """Return the first rank with another norm, or clipped more or less often."""
    for step in case.ranks:
        gate = case.gates.gradient(step.optimizer, step.step)
        if difference := _times(step):
            return difference
        if (step.gradient_difference or 0.0) <= gate:
            continue
        theirs, mine = step.original.gradient_norm, step.rewritten.gradient_norm
        before = ""
        if (relative(theirs, mine) or 0.0) <= gate:
            theirs, mine = step.original.clipped_from[0], step.rewritten.clipped_from[0]
            before = " before clipping"
        if theirs is None or mine is None:
            continue
        what = f"gradient norm{before} {mine:.6g}, in the original {theirs:.6g}"
        what += causes.of_gradients(case, step, theirs, mine)
        return at_step("gradient norm", step, what, step.gradient_difference)
    return None


def _times(step: StepComparison) -> Difference | None:
    times, in_original = len(step.rewritten.clipped_from), len(step.original.clipped_from)
    if times == in_original:
        return None
    what = (
        f"clip_grad_norm_ was called {times} times before the step, in the original {in_original}"
    )
    return at_step("gradient norm", step, what + lines(step, "clip"))

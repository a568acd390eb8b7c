"""Number of parameters with gradients: none after a move behind the optimizer, fewer after freezing."""

from __future__ import annotations

from migrate.prove.compare.difference import Difference, StepCase, at_step, lines, listed


def check(case: StepCase) -> Difference | None:
    """Return the first rank where the optimizer holds other parameters, or other parameters have
    gradients.
    """
    for step in case.ranks:
        theirs, mine = step.original, step.rewritten
        if (theirs.with_gradient, theirs.parameters) == (mine.with_gradient, mine.parameters):
            continue
        what = f"{mine.with_gradient} of {mine.parameters} parameters have gradients"
        if not mine.with_gradient and not mine.in_modules:
            what += ": the optimizer was made before the model was moved to the XLA device"
            return at_step("gradient count", step, what + lines(step, "optimizer"))
        what += f", in the original {theirs.with_gradient} of {theirs.parameters}"
        without = set(mine.details.without_gradient) - set(theirs.details.without_gradient)
        if mine.parameters != theirs.parameters:
            what += ": the optimizer is given others" + lines(step, "optimizer")
        elif without:
            what += f": none have {listed(sorted(without))} (requires_grad off, or detached?)"
            what += lines(step, "backward")
        return at_step("gradient count", step, what)
    return None

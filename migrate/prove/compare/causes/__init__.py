"""Causes of a divergence of gradients or losses: one cause a file; the first that fits is reported.

Causes only explain a known divergence; a cause alone makes no difference.
"""

from __future__ import annotations

from collections.abc import Callable

from migrate.prove.compare.causes import batches, clipping, mode, scaling, start, zeroing
from migrate.prove.compare.compare import StepComparison
from migrate.prove.compare.difference import StepCase, lines

_CAUSES: tuple[Callable[[StepCase, StepComparison], str | None], ...] = (
    start.cause,
    batches.cause,
    mode.cause,
)


def of_gradients(case: StepCase, step: StepComparison, theirs: float, mine: float) -> str:
    """Explain why the gradients of a step have another norm; if unknown, return the line of backward().

    Args:
        case: the step of all ranks.
        step: the step of the rank where the norm differs.
        theirs: the norm in the original.
        mine: the norm in the rewrite.
    """
    if explanation := _shared(case, step):
        return explanation
    explanation = (
        clipping.cause(case, step)
        or scaling.cause(case, step, theirs, mine)
        or zeroing.cause(case, step)
    )
    return f"{explanation}" if explanation else lines(step, "backward")


def of_losses(case: StepCase, step: StepComparison) -> str:
    """Explain why the loss of a step differs; if unknown, return the line of backward()."""
    return _shared(case, step) or lines(step, "backward")


def _shared(case: StepCase, step: StepComparison) -> str | None:
    return next((explanation for cause in _CAUSES if (explanation := cause(case, step))), None)

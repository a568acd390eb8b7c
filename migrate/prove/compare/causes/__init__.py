"""Why gradients or losses part: one cause a file, the first that fits is told.

Only what is known to part is explained; no cause makes a difference by itself.
"""

from __future__ import annotations

from collections.abc import Callable

from migrate.prove.compare.causes import batches, clipping, mode, scaling, start, zeroing
from migrate.prove.compare.compare import StepComparison
from migrate.prove.compare.difference import Case, lines

_CAUSES: tuple[Callable[[Case, StepComparison], str | None], ...] = (
    start.cause,
    batches.cause,
    mode.cause,
)


def of_gradients(case: Case, step: StepComparison, theirs: float, mine: float) -> str:
    """Why the gradients of a step have another norm; the line of backward() if it is not known.

    Args:
        case: the step of all ranks.
        step: of the rank where the norm differs.
        theirs: the norm in the original.
        mine: in the rewrite.
    """
    if found := _shared(case, step):
        return found
    found = (
        clipping.cause(case, step)
        or scaling.cause(case, step, theirs, mine)
        or zeroing.cause(case, step)
    )
    return f"{found}" if found else lines(step, "backward")


def of_losses(case: Case, step: StepComparison) -> str:
    """Why the loss of a step is another; the line of backward() if it is not known."""
    return _shared(case, step) or lines(step, "backward")


def _shared(case: Case, step: StepComparison) -> str | None:
    return next((found for cause in _CAUSES if (found := cause(case, step))), None)

"""The weights differ before the first step."""

from __future__ import annotations

import math

from migrate.prove.compare.compare import StepComparison
from migrate.prove.compare.difference import StepCase, lines

# Two float32 sums of the same numbers in different orders are nearer than this.
_GATE = 1e-5


def cause(case: StepCase, step: StepComparison) -> str | None:
    """Detect another seed, another initialization, or a missing broadcast of rank 0's weights."""
    theirs, mine = step.original.details.start, step.rewritten.details.start
    if step.step != 1 or not theirs or not mine or _alike(theirs, mine):
        return None
    apart = len({rank.rewritten.details.start for rank in case.ranks}) > 1
    if apart and len({rank.original.details.start for rank in case.ranks}) == 1:
        return (
            ": the ranks start from different weights (is DDP missing, which gives all the weights of rank "
            f"0, or does the seed depend on the rank?){lines(step, 'optimizer')}"
        )
    return (
        ": the weights differ before the first step (another seed, another initialization, or a "
        f"checkpoint that was not loaded?){lines(step, 'optimizer')}"
    )


def _alike(theirs: tuple[float, ...], mine: tuple[float, ...]) -> bool:
    (total, squares), (other, other_squares) = theirs, mine
    return abs(other_squares - squares) <= _GATE * squares and abs(
        other - total
    ) <= _GATE * math.sqrt(squares) + _GATE * abs(total)

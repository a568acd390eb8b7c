"""Whether a script trains the same from weights that are a rounding away."""

from __future__ import annotations

import math
from collections.abc import Sequence

from migrate.counts import many
from migrate.train.results import STABILITY, TrainComparison

# A script whose own losses move by more than this is compared with nothing beyond: about a hundred times the
# limit of losses.
STABLE = 1e-3


def stability(measured: tuple[float, int | None, int] | str) -> tuple[TrainComparison, ...]:
    """Return the comparison of a script with itself.

    Args:
        measured: how far its losses move, the first update in which they move by more than the limit, and the
            number of updates; or why this is not known.
    """
    if isinstance(measured, str):
        what = f"the script failed when it was run again: {measured}"
        return (TrainComparison(STABILITY, False, limit=STABLE, what=what),)
    worst, first, count = measured
    what = f"losses of the script itself from weights a rounding away, {many(count, 'update')}"
    if first is not None:
        what += f"; the script amplifies differences: from update {first} on, no other program has its losses"
    return (TrainComparison(STABILITY, first is None, worst, STABLE, what),)


def moved(
    losses: Sequence[Sequence[float]], echo: Sequence[Sequence[float]], limit: float, size: float
) -> tuple[float, int | None]:
    """Return how far losses move, and the first update in which they move by more than a limit.

    Args:
        losses: of each micro-batch of each update.
        echo: those of the run that started a rounding away.
        limit: relative to the loss, or to a tenth of the largest one or of `size`, if that is more.
        size: size of the terms of the first loss.
    """
    least = 0.1 * max([size, *(abs(loss) for update in losses for loss in update)])
    worst, first = 0.0, None
    for number, (own, other) in enumerate(zip(losses, echo, strict=False)):
        for a, b in zip(own, other, strict=False):
            distance = abs(a - b) / (max(abs(a), least) or 1.0)
            if not distance <= limit and first is None:
                first = number
            worst = max(worst, math.inf if math.isnan(distance) else distance)
    return worst, first

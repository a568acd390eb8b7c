"""Whether a script trains the same from weights that are a rounding away."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from migrate.counts import many
from migrate.prove.compare.gates import LOSS_GATE
from migrate.train.results import CANCELLATION, STABILITY, TrainComparison

# A script whose own losses move by more than this is compared with nothing beyond: about a hundred times the
# limit of losses.
STABLE = 1e-3
# Losses that move by less in one run are stable; else up to so many runs decide.
_CLEAR, _MOST_RUNS = STABLE / 50, 5


@dataclass(frozen=True)
class Echo:
    """Distance of a script's losses from those of runs whose weights start a rounding away.

    Attributes:
        worst: how far.
        first: the first update in which they move by more than `STABLE`.
        updates: number of updates.
        runs: number of runs, each of which rounds in other directions.
    """

    worst: float
    first: int | None
    updates: int
    runs: int = 1


def decided(echoes: Sequence[Echo]) -> Echo | None:
    """All runs as one, if they decide; None if another one is needed.

    A script that amplifies rounding may move far in one direction, and hardly in another one.
    """
    worst = max(echo.worst for echo in echoes)
    if _CLEAR < worst <= STABLE and len(echoes) < _MOST_RUNS:
        return None
    firsts = [echo.first for echo in echoes if echo.first is not None]
    first = min(firsts, default=None)
    return Echo(worst, first, min(echo.updates for echo in echoes), len(echoes))


def stability(echo: Echo | str) -> tuple[TrainComparison, ...]:
    """Return the comparison of a script with itself.

    Args:
        echo: how far its losses move; or why this is not known.
    """
    if isinstance(echo, str):
        what = f"the script failed when it was run again: {echo}"
        return (TrainComparison(STABILITY, False, limit=STABLE, what=what),)
    what = (
        f"losses of the script itself from weights a rounding away, {many(echo.updates, 'update')}"
    )
    what += f", {many(echo.runs, 'run')}" if echo.runs > 1 else ""
    if echo.first is not None:
        what += (
            f"; the script amplifies differences: from update {echo.first} on, no other program has its "
            "losses"
        )
    return (TrainComparison(STABILITY, echo.first is None, echo.worst, STABLE, what=what),)


def cancellation(recorded: Mapping[str, Any], name: str = "") -> tuple[TrainComparison, ...]:
    """Return the comparison of a script's losses with the rounding of their terms, if some of them cancel.

    Where float32 leaves less of a loss than the limit of losses, no program can be held to it.

    Args:
        recorded: the record of an update.
        name: its name, if there are several.
    """
    update, worst = max(recorded["rounding"], key=lambda item: item[1], default=(0, 0.0))
    if worst <= LOSS_GATE:
        return ()
    what = (
        (f"{name}: " if name else "")
        + f"losses of the script beside the rounding of their terms; the terms cancel at update {update}"
    )
    return (TrainComparison(CANCELLATION, False, worst, LOSS_GATE, what=what),)


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

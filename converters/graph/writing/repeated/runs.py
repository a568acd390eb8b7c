"""Runs of equal layers in a sequence, so that each run is written once."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

# Cost of a run beside its layers, in layers: few runs are easier to read, and their weights to use.
_RUN = 2


@dataclass(frozen=True)
class Run:
    """Successive layers.

    Attributes:
        first: number of the first layer.
        period: how many layers repeat together.
        count: how often they are there.
    """

    first: int
    period: int
    count: int

    @property
    def end(self) -> int:
        """Number of the layer after the last."""
        return self.first + self.period * self.count


def runs(keys: Sequence[Hashable]) -> tuple[Run, ...]:
    """Divide a sequence into runs, with few runs and few layers to write.

    Args:
        keys: equal for layers that do the same.
    """
    size = len(keys)
    best: list[tuple[int, tuple[Run, ...]]] = [(0, ())] * (size + 1)
    for at in reversed(range(size)):
        ways = [(1 + _RUN + best[at + 1][0], (Run(at, 1, 1), *best[at + 1][1]))]
        for period in range(1, (size - at) // 2 + 1):
            group, count = keys[at : at + period], 1
            while keys[at + count * period : at + (count + 1) * period] == group:
                count += 1
            if count > 1:
                run = Run(at, period, count)
                cost, rest = best[run.end]
                ways.append((period + _RUN + cost, (run, *rest)))
        best[at] = min(ways, key=lambda way: way[0])
    return best[0][1]

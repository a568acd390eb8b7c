"""Passes that each take what looks alike otherwise, until the models part no more."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from migrate.parity.ground.fitting import Difference

Array = np.ndarray[Any, Any]
# Which of several that look alike is taken: a pattern of names → its rank among them, by names and order.
Choices = Mapping[Any, int]
# Orders of what looks alike that are tried: enough for query, key and value of two kinds of block.
_MOST = 48


@dataclass(frozen=True)
class Open:
    """Several layers of torch that what flows through does not tell apart.

    Attributes:
        pattern: of their names and the asking layer's: repeated blocks share one.
        count: how many.
        before: how many differences were known then.
    """

    pattern: Any
    count: int
    before: int


@dataclass
class Tried:
    """What a pass found.

    Attributes:
        differences: where the models part, in the order of execution.
        agreed: how many layers were the same before the first difference.
        layers: how many layers were found in torch's.
        choices: what was taken otherwise than proposed.
        open: what could have been taken otherwise.
        unsure: arrays that only the outputs confirm: no layer of torch's is given the same, or several are.
        outputs: of the model.
    """

    differences: list[Difference] = field(default_factory=list)
    agreed: int = 0
    layers: int = 0
    choices: dict[Any, int] = field(default_factory=dict)
    open: list[Open] = field(default_factory=list)
    unsure: dict[str, None] = field(default_factory=dict)
    outputs: Mapping[str, Array] = field(default_factory=dict)

    @property
    def parted(self) -> bool:
        """Whether it parts by more than roundings."""
        return any(not one.rounding for one in self.differences)


class EnoughSeen(BaseException):
    """A pass that is no better than the best one is not finished."""


_Pass = TypeVar("_Pass", bound=Tried)
# A pass with these choices, that ends where it has so many differences (None: it does not).
Run = Callable[[Choices, int | None], _Pass]


class Trials:
    """Passes of one model.

    Attributes:
        passes: how many were run.
        untried: whether some were left, as there were too many.
    """

    def __init__(self) -> None:
        self.passes, self.untried = 0, False

    def best(self, run: Run[_Pass], first: _Pass) -> _Pass:
        """The pass that parts last, where the first one parts."""
        best = first
        while best.parted:
            one = self._later(run, best)
            if one is None:
                return best
            best = one
        return best

    def _later(self, run: Run[_Pass], best: _Pass) -> _Pass | None:
        """A pass that parts later; None: none that was tried does."""
        queue = deque(_others(best))
        tried: set[frozenset[Any]] = set()
        while queue:
            choices = queue.popleft()
            if frozenset(choices.items()) in tried:
                continue
            tried.add(frozenset(choices.items()))
            if self.passes >= _MOST:
                self.untried = True
                return None
            one = run(choices, 1)  # no further than to its first difference
            if better(one, best):
                return run(choices, None)
            queue.extend(_others(one))  # what is open only after that choice
        return None


def better(one: Tried, other: Tried) -> bool:
    """Whether it parts later, or not at all."""
    return other.parted and (not one.parted or one.agreed > other.agreed)


def _others(found: Tried) -> Iterator[Choices]:
    """The same choices and one more, among what was open before the first difference; the last first."""
    counts = {one.pattern: one.count for one in found.open if not one.before}
    for key in reversed(counts):
        if key not in found.choices:
            yield from (found.choices | {key: rank} for rank in range(1, counts[key]))

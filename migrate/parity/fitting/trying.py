"""Passes that try the alternatives of layers that look alike, until the models no longer diverge."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from migrate.parity.ground.fitting import ModelDifference

Array = np.ndarray[Any, Any]
# Choice among layers that look alike: a pattern of names → index in their ranking by names and order.
Choices = Mapping[Any, int]
# Maximum number of passes: enough for query, key and value of two kinds of block.
_MOST = 48


@dataclass(frozen=True)
class Open:
    """Open question: several torch layers with the same inputs.

    Attributes:
        pattern: pattern of their names and the asking layer's, shared by repeated blocks.
        count: number of layers.
        before: number of differences known at that time.
    """

    pattern: Any
    count: int
    before: int


@dataclass
class TriedPass:
    """Findings of a pass.

    Attributes:
        differences: divergences of the models, in the order of execution.
        agreed: number of layers that agreed before the first difference.
        layers: number of layers matched with torch's.
        choices: choices that differ from the proposals.
        open: open questions.
        unsure: arrays that only the outputs confirm: no torch layer has the same input, or several have.
        outputs: outputs of the model.
    """

    differences: list[ModelDifference] = field(default_factory=list)
    agreed: int = 0
    layers: int = 0
    choices: dict[Any, int] = field(default_factory=dict)
    open: list[Open] = field(default_factory=list)
    unsure: dict[str, None] = field(default_factory=dict)
    outputs: Mapping[str, Array] = field(default_factory=dict)

    @property
    def parted(self) -> bool:
        """Whether the models diverge by more than rounding."""
        return any(not difference.rounding for difference in self.differences)


class EnoughSeen(BaseException):
    """Raised to end a pass that is no better than the best pass."""


_Pass = TypeVar("_Pass", bound=TriedPass)
# A pass with these choices, which ends after this number of differences (None: never).
Run = Callable[[Choices, int | None], _Pass]


class Trials:
    """Passes of one model.

    Attributes:
        passes: number of passes.
        untried: whether some were left untried, because there were too many.
    """

    def __init__(self) -> None:
        self.passes, self.untried = 0, False

    def best(self, run: Run[_Pass], first: _Pass) -> _Pass:
        """Best pass: the pass that diverges last, at each divergence of the best so far."""
        best = first
        while best.parted:
            later = self._later(run, best)
            if later is None:
                return best
            best = later
        return best

    def _later(self, run: Run[_Pass], best: _Pass) -> _Pass | None:
        """Pass that diverges later; None: no tried pass does."""
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
            candidate = run(choices, 1)  # no further than to its first difference
            if better(candidate, best):
                return run(choices, None)
            queue.extend(_others(candidate))  # questions that are open only after that choice
        return None


def better(candidate: TriedPass, other: TriedPass) -> bool:
    """Whether a pass diverges later than another, or not at all."""
    return other.parted and (not candidate.parted or candidate.agreed > other.agreed)


def _others(tried: TriedPass) -> Iterator[Choices]:
    """The same choices plus one, from the questions open before the first difference; the last first."""
    counts = {question.pattern: question.count for question in tried.open if not question.before}
    for key in reversed(counts):
        if key not in tried.choices:
            yield from (tried.choices | {key: rank} for rank in range(1, counts[key]))

"""The truth that a side is held against, and how the side lies to it."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from migrate.parity.dump.dump import Dump, RecentDump
from migrate.parity.ground.alignment import Alignment


@dataclass(frozen=True)
class Reference:
    """The truth, and how a side lies to it.

    Attributes:
        truth: the dump of the truth, of the same inputs.
        alignment: of this side with the truth.
    """

    truth: Path
    alignment: Alignment

    @functools.cached_property
    def dump(self) -> Dump:
        """The truth's dump, open; it holds the tensors that were read last."""
        return RecentDump(self.truth)


class Forced(Reference):
    """Feed every layer with the truth's inputs, so that what it puts out has its own error only.

    Before a layer that has a pair runs, its arguments are replaced by the truth's (in the side's dtype and
    layout); after it, its output is written, and what its caller goes on with is the truth's output. A
    layer with others inside so shows what *its own* operations add. A layer whose arguments have no
    partner is run with what it is given.

    The `arguments` of every Call are written as the caller gave them, *before* they were replaced: what the
    caller computes between the layers that it calls (an activation that is no module, a mask, a residual)
    is seen nowhere else. Values that the side's dtype does not hold (float64's most negative number in a
    mask) become its largest, not infinities.
    """

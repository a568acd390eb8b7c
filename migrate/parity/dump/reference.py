"""Truth that a side is compared with, and its alignment."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from migrate.parity.dump.dump import Dump, RecentDump
from migrate.parity.ground.alignment import LayerAlignment


@dataclass(frozen=True)
class AlignedTruth:
    """The truth, and the alignment of a side with it.

    Attributes:
        truth: dump of the truth, with the same inputs.
        alignment: alignment of this side with the truth.
    """

    truth: Path
    alignment: LayerAlignment

    @functools.cached_property
    def dump(self) -> Dump:
        """Open dump of the truth; it holds the tensors that were read last."""
        return RecentDump(self.truth)


class Forced(AlignedTruth):
    """Feed every layer with the truth's inputs, so that its output has its own error only.

    Before a layer that has a partner runs, its arguments are replaced by the truth's, in the side's dtype
    and layout. After it, its output is written, and its caller continues with the truth's output. A layer
    with layers inside thus shows the error of *its own* operations. A layer whose arguments have no partner
    runs with its own arguments.

    The `arguments` of every Call are written as the caller passed them, *before* they were replaced. They
    are the only record of what the caller computes between its layers: an activation that is no module, a
    mask, a residual. Values outside the range of the side's dtype (float64's most negative number in a mask)
    become its largest number, not infinities.
    """

"""Run a variant, and measure how far it is from what the side gives."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from migrate.parity.causes.frame.changes import weight
from migrate.parity.causes.frame.functions import intercepted
from migrate.parity.causes.frame.look import Look, Seen, relative
from migrate.parity.causes.frame.pattern import Variant
from migrate.parity.causes.frame.products import rounded_products, to_bfloat16
from migrate.parity.causes.frame.replay import Spot
from migrate.parity.causes.frame.scene import Scene

# A variant must bring the difference down at least by that, and below the side's noise.
GAIN = 10.0
# Residuals within this factor of each other are equally good: then the simpler pattern is believed.
ALIKE = 3.0
_PLAIN = Variant("")
_FAR = math.inf


@dataclass(frozen=True)
class Trial:
    """A layer on one input, and what the side has of it.

    Attributes:
        scene: the layer.
        look: what is compared.
        one_pass: whether the side multiplies matrices in one pass of bfloat16.
    """

    scene: Scene
    look: Look
    one_pass: bool = False

    def distances(self, variant: Variant = _PLAIN) -> tuple[float, ...]:
        """Relative L2 of each tensor that is seen; infinite where the variant does not apply."""
        try:
            if variant.change is nullcontext:
                spots = self._plain
            else:
                with self._precision(), variant.change():
                    spots = self.scene.replay.run()
            return tuple(self._distance(spots, seen, variant) for seen in self.look.seen)
        except Exception:  # a variant that does not fit the layer's code says nothing
            return (_FAR,) * len(self.look.seen)

    @cached_property
    def _plain(self) -> dict[Spot, torch.Tensor]:
        """What the layer gives as it is."""
        with self._precision():
            return self.scene.replay.run()

    def _precision(self) -> AbstractContextManager[None]:
        """Matrix products as the side has them, below what the variant changes."""
        if not self.one_pass:
            return nullcontext()
        return intercepted(rounded_products(to_bfloat16))

    def _distance(self, spots: dict[Spot, torch.Tensor], seen: Seen, variant: Variant) -> float:
        if seen.spot not in spots:
            return _FAR
        given = seen.pair.as_mine(spots[seen.spot].to(torch.float64).numpy())
        mine = seen.mine.astype(np.float64)
        if variant.adjust is not None:
            adjusted = variant.adjust(given, mine)
            if adjusted is None:
                return _FAR
            given = adjusted
        kept = self.look.kept
        if kept is not None and mine.ndim > 2 and mine.shape[:2] == kept.shape == given.shape[:2]:
            given, mine = given[kept], mine[kept]
        return relative(given, mine)


@dataclass(frozen=True)
class Fit:
    """How well a variant gives what the side gives.

    Attributes:
        spots: positions of the tensors that parted and no longer do.
        whole: whether that is all that is seen.
        before, after: the largest relative L2 of these.
    """

    spots: tuple[int, ...]
    whole: bool
    before: float
    after: float


class Gauge:
    """Whether variants give what the side gives.

    Attributes:
        trial: what is run.
        limit: the side's noise.
        parting: positions of the tensors in which the truth's layer as it is differs from the side's.
    """

    def __init__(self, trial: Trial, limit: float) -> None:
        self.trial, self.limit = trial, limit
        self._before = trial.distances()
        self.parting = [n for n, one in enumerate(self._before) if not one < limit / 4]

    def fit(self, variant: Variant) -> Fit | None:
        """How well it fits; None if it does nowhere."""
        after = self.trial.distances(variant)
        spots = [n for n in self.parting if after[n] <= min(self.limit, self._before[n] / GAIN)]
        if not spots:
            return None
        whole = spots == self.parting and max(after) <= self.limit
        before = max(self._before[n] for n in spots)
        return Fit(tuple(spots), whole, before, max(after[n] for n in spots))


def rounded(scene: Scene, dtype: torch.dtype) -> Iterator[AbstractContextManager[None]]:
    """The layer's own weights as a side has them that computes in this dtype."""
    for part, name in scene.weights(lambda _module, _name, tensor: tensor.is_floating_point()):
        yield weight(part.module, name, lambda tensor: tensor.to(dtype).to(tensor.dtype))

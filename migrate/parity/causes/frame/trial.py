"""Run a variant, and measure its distance from the side."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from migrate.parity.causes.frame.changes import weight
from migrate.parity.causes.frame.compared_tensors import ComparedTensor, Comparison, relative
from migrate.parity.causes.frame.functions import intercepted
from migrate.parity.causes.frame.pattern import Variant
from migrate.parity.causes.frame.products import rounded_products, to_bfloat16
from migrate.parity.causes.frame.replay import Spot
from migrate.parity.causes.frame.scene import Scene

# A variant must reduce the difference by at least this factor, and below the side's noise.
GAIN = 10.0
# Residuals within this factor of each other are equally good: then the simpler pattern wins.
ALIKE = 3.0
_PLAIN = Variant("")
_FAR = math.inf


@dataclass(frozen=True)
class Trial:
    """Layer on one input, and the side's tensors of it.

    Attributes:
        scene: the layer.
        look: the compared tensors.
        one_pass: whether the side multiplies matrices in one pass of bfloat16.
    """

    scene: Scene
    look: Comparison
    one_pass: bool = False

    def distances(self, variant: Variant = _PLAIN) -> tuple[float, ...]:
        """Relative L2 of each compared tensor; infinite where the variant does not apply."""
        try:
            if variant.change is nullcontext:
                spots = self._plain
            else:
                with self._precision(), variant.change():
                    spots = self.scene.replay.run()
            return tuple(self._distance(spots, seen, variant) for seen in self.look.seen)
        except Exception:  # a variant that does not fit the layer's code proves nothing
            return (_FAR,) * len(self.look.seen)

    @cached_property
    def _plain(self) -> dict[Spot, torch.Tensor]:
        """Tensors of the layer without a variant."""
        with self._precision():
            return self.scene.replay.run()

    def _precision(self) -> AbstractContextManager[None]:
        """Compute matrix products as the side does, below the changes of the variant."""
        if not self.one_pass:
            return nullcontext()
        return intercepted(rounded_products(to_bfloat16))

    def _distance(
        self, spots: dict[Spot, torch.Tensor], seen: ComparedTensor, variant: Variant
    ) -> float:
        if seen.spot not in spots:
            return _FAR
        output = seen.pair.as_mine(spots[seen.spot].to(torch.float64).numpy())
        mine = seen.mine.astype(np.float64)
        if variant.adjust is not None:
            adjusted = variant.adjust(output, mine)
            if adjusted is None:
                return _FAR
            output = adjusted
        kept = self.look.kept
        if kept is not None and mine.ndim > 2 and mine.shape[:2] == kept.shape == output.shape[:2]:
            output, mine = output[kept], mine[kept]
        return relative(output, mine)


@dataclass(frozen=True)
class VariantFit:
    """Quality of the match of a variant with the side.

    Attributes:
        spots: positions of the tensors that diverged and no longer do.
        whole: whether no other tensor is compared.
        before, after: the largest relative L2 of these tensors.
    """

    spots: tuple[int, ...]
    whole: bool
    before: float
    after: float


class Gauge:
    """Test whether variants compute what the side computes.

    Attributes:
        trial: the trial to run.
        limit: the side's noise.
        parting: positions of the tensors in which the truth's unchanged layer differs from the side's.
    """

    def __init__(self, trial: Trial, limit: float) -> None:
        self.trial, self.limit = trial, limit
        self._before = trial.distances()
        self.parting = [n for n, distance in enumerate(self._before) if not distance < limit / 4]

    def fit(self, variant: Variant) -> VariantFit | None:
        """Match of a variant with the side; None if no tensor matches."""
        after = self.trial.distances(variant)
        spots = [n for n in self.parting if after[n] <= min(self.limit, self._before[n] / GAIN)]
        if not spots:
            return None
        whole = spots == self.parting and max(after) <= self.limit
        before = max(self._before[n] for n in spots)
        return VariantFit(tuple(spots), whole, before, max(after[n] for n in spots))


def rounded(scene: Scene, dtype: torch.dtype) -> Iterator[AbstractContextManager[None]]:
    """Yield changes that round the layer's own weights to the dtype of the side."""
    for part, name in scene.weights(lambda _module, _name, tensor: tensor.is_floating_point()):
        yield weight(part.module, name, lambda tensor: tensor.to(dtype).to(tensor.dtype))

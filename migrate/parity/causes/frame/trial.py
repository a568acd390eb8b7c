"""Run a variant, and measure how far it is from what the side gives."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from migrate.parity.causes.frame.changes import weight
from migrate.parity.causes.frame.look import Look, relative
from migrate.parity.causes.frame.pattern import Variant
from migrate.parity.causes.frame.scene import Scene

_PLAIN = Variant("")
_FAR = math.inf


@dataclass(frozen=True)
class Trial:
    """A layer on one input, and what the side has of it."""

    scene: Scene
    look: Look

    def distance(self, variant: Variant = _PLAIN) -> float:
        """The largest relative L2 of what is seen; infinite where the variant does not apply."""
        try:
            with variant.change():
                spots = self.scene.replay.run()
            return max(self._distances(spots, variant))
        except Exception:
            return _FAR

    def _distances(self, spots: dict[Any, torch.Tensor], variant: Variant) -> Iterator[float]:
        for spot, pair, mine in self.look.seen:
            if spot not in spots:
                yield _FAR
                continue
            given = pair.as_mine(spots[spot].to(torch.float64).numpy())
            if variant.adjust is not None:
                given = variant.adjust(given, mine.astype(np.float64))
            yield _FAR if given is None else relative(given, mine)


def rounded(scene: Scene, dtype: torch.dtype) -> Iterator[AbstractContextManager[None]]:
    """The layer's own weights as a side has them that computes in this dtype."""
    for part, name in scene.weights(lambda _module, _name, tensor: tensor.is_floating_point()):
        yield weight(part.module, name, lambda tensor: tensor.to(dtype).to(tensor.dtype))

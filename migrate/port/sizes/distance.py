"""The distance of a port's outputs from the original's."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np

from migrate.port.sizes.instance import Array, Instance, run
from migrate.port.texts import LIMIT

# By how much a port may be farther from float64 than torch itself is.
_ROUNDING = 4.0


def distance(found: Sequence[Array], made: Instance) -> tuple[float, float]:
    """The relative L2 of the worst output, and the limit: torch's own distance counts where it is more."""
    import torch

    if len(found) != len(made.outputs):
        return float("inf"), LIMIT
    reference = made.outputs
    own = 0.0
    try:
        reference = run(copy.deepcopy(made.module).double(), made.inputs, torch.float64)
        own = max(map(_relative, made.outputs, reference), default=0.0)
    except Exception:  # a module that makes float32 tensors beside those of float64
        reference = made.outputs
    worst = max(map(_relative, found, reference), default=0.0)
    return worst, max(LIMIT, _ROUNDING * own)


def _relative(found: Array, wanted: Array) -> float:
    if found.shape != wanted.shape:
        return float("inf")
    if wanted.dtype.kind in "biu":
        return float(np.mean(found != wanted)) if wanted.size else 0.0
    finite = np.isfinite(wanted)
    if not np.array_equal(finite, np.isfinite(found)):
        return float("inf")
    size = float(np.linalg.norm(wanted[finite]))
    apart = float(np.linalg.norm(found[finite] - wanted[finite]))
    return apart / size if size else apart

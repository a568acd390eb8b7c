"""The distance of a port's outputs from the original's."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np

from migrate.port.sizes.instance import Array, SizedModel, run
from migrate.port.texts import LIMIT

# By how much a port may be farther from float64 than torch itself is.
_ROUNDING = 4.0


def distance(outputs: Sequence[Array], instance: SizedModel) -> tuple[float, float]:
    """The relative L2 of the worst output, and the limit: torch's own distance counts where it is more."""
    import torch

    if len(outputs) != len(instance.outputs):
        return float("inf"), LIMIT
    reference = instance.outputs
    own = 0.0
    try:
        reference = run(copy.deepcopy(instance.module).double(), instance.inputs, torch.float64)
        own = max(map(_relative, instance.outputs, reference), default=0.0)
    except Exception:  # a module that makes float32 tensors beside those of float64
        reference = instance.outputs
    worst = max(map(_relative, outputs, reference), default=0.0)
    return worst, max(LIMIT, _ROUNDING * own)


def difference(outputs: Sequence[Array], instance: SizedModel, apart: float) -> str:
    """Return how outputs differ that are `apart` from the original's: "are 1.0e-03 from …"."""
    wanted = instance.outputs
    if len(outputs) != len(wanted):
        return f"are {len(outputs)}, the original's {len(wanted)}"
    for mine, theirs in zip(outputs, wanted, strict=True):
        if mine.shape != theirs.shape:
            return f"have the shape {list(mine.shape)}, the original's {list(theirs.shape)}"
    if np.isinf(apart):
        return "are NaN or infinite in other elements than the original's"
    return f"are {apart:.1e} from the original's"


def _relative(output: Array, wanted: Array) -> float:
    if output.shape != wanted.shape:
        return float("inf")
    if wanted.dtype.kind in "biu":
        return float(np.mean(output != wanted)) if wanted.size else 0.0
    finite = np.isfinite(wanted)
    if not np.array_equal(finite, np.isfinite(output)):
        return float("inf")
    # Squares of large masks overflow in float32.
    wide = np.complex128 if wanted.dtype.kind == "c" else np.float64
    reference = wanted[finite].astype(wide)
    size = float(np.linalg.norm(reference))
    apart = float(np.linalg.norm(output[finite] - reference))
    return apart / size if size else apart

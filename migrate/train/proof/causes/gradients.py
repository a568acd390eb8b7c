"""Mistakes in a loss: the program's loss and gradients beside those of the script with each mistake."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from migrate.train.proof.arrays import Arrays, distance, norm

# A mistake explains a program whose values are as near to it as an equal program's to the script.
_LOSS, _GRADIENT = 1e-5, 2e-5


def loss_cause(
    loss: float,
    gradients: Arrays,
    script_loss: float,
    script: Arrays,
    mistakes: Mapping[str, tuple[float, Arrays]],
) -> str:
    """Name the mistake in the loss; "" if none is known.

    Args:
        loss: the program's loss of the first micro-batch.
        gradients: its gradients.
        script_loss: the script's loss.
        script: the script's gradients.
        mistakes: loss and gradients of the script with each mistake.
    """
    for what, (value, mistaken) in mistakes.items():
        if abs(loss - value) <= _LOSS * abs(value) and _near(gradients, mistaken):
            return what
    for what, (_, mistaken) in mistakes.items():
        # Gradients tell more than the loss, to which a constant may be added.
        if _near(gradients, mistaken):
            return f"{what}; the loss has another constant too"
    if factor := factor_of(gradients, script):
        if abs(loss - factor * script_loss) <= _LOSS * abs(loss):
            return f"the loss is {_spoken(factor)} the script's: a sum for a mean, or divided otherwise"
        return f"gradients are {_spoken(factor)} the script's, the loss is not"
    if _near(gradients, script):
        return "the loss has a term without gradient that the script does not have, or lacks one"
    return _parts(gradients, script)


def factor_of(ours: Arrays, theirs: Arrays) -> float:
    """The number by which all of `theirs` is multiplied in `ours`; 0.0 if there is none but 1."""
    dot = sum(float(np.vdot(ours[n], theirs[n])) for n in theirs)
    square = norm(theirs) ** 2
    if not square or not math.isfinite(dot):
        return 0.0
    factor = dot / square
    if factor <= 0 or abs(factor - 1) < 1e-4:
        return 0.0
    scaled = {name: factor * np.asarray(value) for name, value in theirs.items()}
    return factor if _near(ours, scaled) else 0.0


def _near(ours: Arrays, theirs: Arrays) -> bool:
    return distance(ours, theirs) <= _GRADIENT * norm(theirs)


def _parts(ours: Arrays, theirs: Arrays) -> str:
    """Parameters alone whose gradient is lost, or is there where the script has none."""
    whole = norm(theirs)
    lost = [
        n for n, x in theirs.items() if not np.any(ours[n]) and np.linalg.norm(x) > 1e-6 * whole
    ]
    added = [
        n for n, x in theirs.items() if not np.any(x) and np.linalg.norm(ours[n]) > 1e-6 * whole
    ]
    if lost:
        return f"no gradient reaches {_listed(lost)}: stop_gradient, or frozen, where the script is not"
    if added:
        return (
            f"{_listed(added)} has a gradient, in the script it has none: frozen or detached there"
        )
    unlike = [
        n for n, x in theirs.items() if np.linalg.norm(np.asarray(ours[n]) - x) > 1e-4 * whole
    ]
    return (
        f"only the gradient of {_listed(unlike)} differs"
        if 0 < len(unlike) < len(theirs) / 2
        else ""
    )


def _spoken(factor: float) -> str:
    if factor < 1 and abs(1 / factor - round(1 / factor)) < 1e-3 / factor:
        return f"1/{round(1 / factor)} of"
    whole = abs(factor - round(factor)) < 1e-3 * factor
    return f"{round(factor) if whole else round(factor, 4)} times"


def _listed(names: Sequence[str]) -> str:
    return f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else names[0]

"""Mistakes in what a program starts from, and in the statistics that it keeps."""

from __future__ import annotations

from typing import Any

import numpy as np

from migrate.train.proof.arrays import Arrays

_NEAR = 1e-4


def start_cause(name: str, ours: Any, theirs: Any) -> str:
    """Name what is other about the first weights that differ."""
    if ours.shape == theirs.shape and np.allclose(np.sort(ours, None), np.sort(theirs, None), 1e-5):
        return f"the values of {name} are in another order: a transposed or reshaped weight"
    scale = float(np.vdot(ours, theirs)) / max(float(np.vdot(theirs, theirs)), 1e-30)
    if np.allclose(ours, scale * theirs, 1e-4, 1e-7):
        return f"other initialization: {name} is {scale:.4g} times the script's"
    return (
        f"other initialization: {name} has mean {ours.mean():.2g} and deviation {ours.std():.2g}, in the "
        f"script {theirs.mean():.2g} and {theirs.std():.2g} (another seed, distribution or file of weights)"
    )


def statistics_cause(before: Arrays, ours: Arrays, theirs: Arrays) -> str:
    """Name the mistake in running statistics after one update, from those before it; "" if none is known."""
    names = [n for n in theirs if n.startswith("batch_stats/")]
    unlike = [n for n in names if not _near(ours[n], theirs[n])]
    if not unlike or any(not _near(ours[n], theirs[n]) for n in theirs if n not in names):
        return ""
    if all(_near(ours[n], before[n]) for n in unlike):
        return "running statistics are not updated"
    variances = all(n.endswith("var") for n in unlike)
    if variances and any(_is_biased(ours[n], theirs[n], before[n]) for n in unlike):
        return "biased variance: running variances divide by n, torch's by n - 1"
    name = unlike[0]
    ratio = _ratio(ours[name] - before[name], theirs[name] - before[name])
    if ratio is not None:
        return f"another momentum of running statistics: they move {ratio:.4g} times as far"
    return ""


def _is_biased(ours: Any, theirs: Any, before: Any) -> bool:
    """Whether the new variance lacks a part of what torch adds: m * var / n, one n for all channels."""
    for momentum in (0.1, 0.01, 0.001, 0.2, 0.3, 0.03, 0.05, 0.5, 0.003):
        added, own = theirs - (1 - momentum) * before, ours - (1 - momentum) * before
        ratio = _ratio(own, added)
        if ratio is None or not 0 < ratio < 1 - 1e-6:
            continue
        count = 1 / (1 - ratio)
        if count >= 1.5 and abs(count - round(count)) < 1e-2 * count:
            return True
    return False


def _ratio(ours: Any, theirs: Any) -> float | None:
    square = float(np.vdot(theirs, theirs))
    if not square:
        return None
    ratio = float(np.vdot(ours, theirs)) / square
    return ratio if np.linalg.norm(ours - ratio * theirs) <= 1e-3 * np.linalg.norm(ours) else None


def _near(ours: Any, theirs: Any) -> bool:
    return bool(np.linalg.norm(ours - theirs) <= _NEAR * max(float(np.linalg.norm(theirs)), 1e-12))

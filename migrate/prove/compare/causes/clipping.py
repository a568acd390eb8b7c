"""Gradients are clipped to another norm, or while they are still scaled."""

from __future__ import annotations

import math

from migrate.prove.compare.compare import StepComparison, relative
from migrate.prove.compare.difference import StepCase, lines

# A scale of the loss is a power of two, and none is smaller in practice.
_SMALLEST_SCALE = 16


def cause(case: StepCase, step: StepComparison) -> str | None:
    """Detect it by the norms before and after clipping."""
    gate = case.gates.gradient(step.optimizer, step.step)
    for theirs, mine in zip(step.original.clipped_from, step.rewritten.clipped_from, strict=False):
        if scale := _scale(theirs, mine, gate):
            return (
                f": clip_grad_norm_ saw gradients {scale:g} times as large, those of a scaled loss (is "
                f"unscale_ missing, or after clipping?){lines(step, 'clip')}"
            )
        if (relative(theirs, mine) or 0.0) <= gate:
            return (
                f", and {mine:.6g} on both sides before clipping: clipped to another max_norm"
                f"{lines(step, 'clip')}"
            )
    return None


def _scale(theirs: float, mine: float, gate: float) -> float | None:
    if not theirs or not mine or not math.isfinite(mine / theirs):
        return None
    ratio = abs(mine / theirs)
    scale = 2.0 ** round(math.log2(ratio))
    return scale if scale >= _SMALLEST_SCALE and abs(ratio / scale - 1) <= gate else None

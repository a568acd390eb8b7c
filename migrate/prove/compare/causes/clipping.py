"""Gradients are clipped to another norm, or while they are still scaled."""

from __future__ import annotations

import math

from migrate.prove.compare.compare import StepComparison, relative
from migrate.prove.compare.difference import StepCase, lines
from migrate.prove.compare.gates import MARGIN

# A scale of the loss is a power of two, and none is smaller in practice.
_SMALLEST_SCALE = 16


def cause(case: StepCase, step: StepComparison) -> str | None:
    """Detect it by the norms before and after clipping."""
    gate = case.gates.gradient(step.optimizer, step.step)
    pairs = list(zip(step.original.clipped_from, step.rewritten.clipped_from, strict=False))
    for theirs, mine in pairs:
        if scale := _scale(theirs, mine, gate):
            return (
                f": clip_grad_norm_ saw gradients {scale:g} times as large, those of a scaled loss (is "
                f"unscale_ missing, or after clipping?){lines(step, 'clip')}"
            )
    before = max((relative(*pair) or 0.0 for pair in pairs), default=0.0)
    after = relative(step.original.gradient_norm, step.rewritten.gradient_norm) or 0.0
    # Clipping to the same norm leaves no larger difference behind than there was.
    if pairs and before <= gate and after > MARGIN * before:
        return (
            f", and {pairs[0][1]:.6g} on both sides before clipping: clipped to another max_norm"
            f"{lines(step, 'clip')}"
        )
    return None


def _scale(theirs: float, mine: float, gate: float) -> float | None:
    if not theirs or not mine or not math.isfinite(mine / theirs):
        return None
    ratio = abs(mine / theirs)
    scale = 2.0 ** round(math.log2(ratio))
    return scale if scale >= _SMALLEST_SCALE and abs(ratio / scale - 1) <= gate else None

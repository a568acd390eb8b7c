"""Modules are in another mode: evaluation left on, normalization not over all ranks."""

from __future__ import annotations

from migrate.prove.compare.compare import StepComparison
from migrate.prove.compare.difference import StepCase, lines


def cause(case: StepCase, step: StepComparison) -> str | None:
    """Compare the modes that the modules report."""
    theirs, mine = step.original.details, step.rewritten.details
    if theirs.evaluating != mine.evaluating:
        lost = "model.train()" if mine.evaluating > theirs.evaluating else "model.eval()"
        return (
            f": {mine.evaluating} modules are in evaluation mode, in the original {theirs.evaluating} "
            f"(is {lost} missing?){lines(step, 'backward')}"
        )
    if theirs.synchronized > mine.synchronized:
        return (
            f": {mine.synchronized} batch normalizations are over all ranks, in the original "
            f"{theirs.synchronized} (is SyncBatchNorm lost?)"
        )
    return None

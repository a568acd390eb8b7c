"""Modules are in another mode: evaluation left on, normalisation not over all ranks."""

from __future__ import annotations

from migrate.prove.compare.compare import StepComparison
from migrate.prove.compare.difference import Case, lines


def cause(case: Case, step: StepComparison) -> str | None:
    """What the modules say of themselves."""
    theirs, mine = step.original.details, step.rewritten.details
    if theirs.evaluating != mine.evaluating:
        lost = "model.train()" if mine.evaluating > theirs.evaluating else "model.eval()"
        return (
            f": {mine.evaluating} modules are in evaluation mode, in the original {theirs.evaluating} "
            f"(is {lost} missing?){lines(step, 'backward')}"
        )
    if theirs.synchronised > mine.synchronised:
        return (
            f": {mine.synchronised} batch normalisations are over all ranks, in the original "
            f"{theirs.synchronised} (is SyncBatchNorm lost?)"
        )
    return None

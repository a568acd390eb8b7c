"""Ranks that have the same parameters in the original have them in the rewrite."""

from __future__ import annotations

from migrate.prove.compare.compare import relative
from migrate.prove.compare.difference import Difference, StepCase, lines, where
from migrate.prove.compare.gates import SMALL
from migrate.prove.recording.records import StepRecord


def check(case: StepCase) -> Difference | None:
    """Return the first rank whose parameters differ from the first rank's."""
    if len({step.original.checksum for step in case.ranks}) > 1:
        return None
    first, *others = case.ranks
    for step in others:
        if step.rewritten.checksum != first.rewritten.checksum:
            return Difference(
                "ranks apart",
                step.step,
                None,
                f"{where(step)}: parameters differ between ranks {first.rank} and {step.rank}"
                f"{_cause(first.rewritten, step.rewritten)}{lines(step, 'backward')}",
            )
    return None


def _cause(first: StepRecord, other: StepRecord) -> str:
    if first.details.start != other.details.start:
        return (
            ": they started from different ones (is DDP missing, which gives all the weights of rank 0, "
            "or does the seed depend on the rank?)"
        )
    norms = zip(
        (*first.clipped_from, first.gradient_norm),
        (*other.clipped_from, other.gradient_norm),
        strict=False,
    )
    # Averaged gradients have the same norm on all ranks.
    if any((relative(*pair) or 0.0) >= SMALL for pair in norms):
        return ": gradients are not averaged (is DDP missing?)"
    return ", after gradients of the same norm"

"""Ranks that have the same parameters in the original have them in the rewrite."""

from __future__ import annotations

from migrate.prove.compare.difference import Difference, StepCase, lines, where


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
                f"{where(step)}: parameters differ between ranks {first.rank} and {step.rank}: "
                f"{_cause(first.rewritten.details.start, step.rewritten.details.start)}"
                f"{lines(step, 'backward')}",
            )
    return None


def _cause(first: tuple[float, ...], other: tuple[float, ...]) -> str:
    if first != other:
        return (
            "they started from different ones (is DDP missing, which gives all the weights of rank 0, "
            "or does the seed depend on the rank?)"
        )
    return "gradients are not averaged (is DDP missing?)"

"""Ranks that draw different random numbers in the original do so in the rewrite, and the other way round."""

from __future__ import annotations

from migrate.prove.compare.compare import StepComparison
from migrate.prove.compare.difference import Difference, StepCase, where


def check(case: StepCase) -> Difference | None:
    """Return the first drawing line whose numbers are equal on all ranks on one side only."""
    if len(case.ranks) < 2:
        return None
    first = case.ranks[0]
    original = [list(step.original.seeds.items()) for step in case.ranks]
    rewritten = [list(step.rewritten.seeds.items()) for step in case.ranks]
    for index in range(min(map(len, [*original, *rewritten]))):
        before = len({seeds[index][1] for seeds in original}) > 1
        after = len({seeds[index][1] for seeds in rewritten}) > 1
        if before != after:
            lines = f"{rewritten[0][index][0]}, {original[0][index][0]} in the original"
            return Difference("draws", first.step, None, _message(first, before, lines))
    return None


def _message(step: StepComparison, differed: bool, lines: str) -> str:
    if differed:
        return (
            f"{where(step)}: the ranks draw different random numbers in the original and the same in the "
            f"rewrite ({lines}): seed XLA in each replica, as the original seeds its GPU, or by "
            "torch_xla.manual_seed(torch.initial_seed() + xr.global_ordinal())"
        )
    return (
        f"{where(step)}: the ranks draw the same random numbers in the original and different ones in the "
        f"rewrite ({lines}): give torch_xla.manual_seed the same seed in all replicas"
    )

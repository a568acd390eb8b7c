"""Find the first divergence of two runs, and describe it in words that lead to the cause.

`compare.checks` has the comparisons of each step in their order, `compare.causes` the explanations.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from migrate.prove.compare.checks import CHECKS
from migrate.prove.compare.compare import StepComparison, WeightComparison
from migrate.prove.compare.difference import Difference, Ranks, StepCase, listed
from migrate.prove.compare.gates import Gates
from migrate.prove.errors import RecordingError
from migrate.prove.recording import meters
from migrate.prove.recording.records import RankRecord


def first_difference(
    original: Ranks,
    ours: Ranks,
    compared: Iterable[StepComparison],
    gates: Gates,
) -> Difference | None:
    """Return the most informative difference at the first step where the sides diverge.

    Comparison ends at the first step whose noise is above the ceiling of the gates.
    """
    if difference := _names(original, ours):
        return difference
    by_step: dict[tuple[int, int], list[StepComparison]] = {}
    for step in compared:
        by_step.setdefault((step.optimizer, step.step), []).append(step)
    for place, ranks in by_step.items():
        if gates.blind(*place):
            return None
        case = StepCase(original, ours, ranks, gates)
        for check in CHECKS:
            if difference := check(case):
                return difference
    return None


def _names(original: Ranks, ours: Ranks) -> Difference | None:
    for rank, record in original.items():
        theirs, mine = record.header.parameters, ours[rank].header.parameters
        if theirs == mine:
            continue
        if more := sorted(mine.keys() - theirs.keys()):
            reason = (
                f"the rewrite has {len(more)} more parameters, {listed(more)}: "
                "was a shared weight not tied again after the move to the XLA device?"
            )
        elif fewer := sorted(theirs.keys() - mine.keys()):
            reason = f"the rewrite lacks {len(fewer)} parameters, {listed(fewer)}"
        else:
            name = next(name for name in theirs if theirs[name] != mine[name])
            reason = f"{name} has shape {mine[name]}, in the original {theirs[name]}"
        return Difference("names", 1, rank, f"step 1: {reason}")
    return None


def final_weights(
    original: Ranks, ours: Ranks, gates: Gates
) -> tuple[tuple[WeightComparison, ...], Difference | None]:
    """Compare the final parameters and buffers of all ranks; return the farthest beyond its gate, if any.

    Raises:
        RecordingError: a rank left no final weights.
    """
    from migrate.prove.recording import elements, weights  # torch takes seconds to import

    farthest: dict[str, WeightComparison] = {}
    last = max(step.step for record in original.values() for step in record.steps)
    for rank, record in original.items():
        theirs, mine = record.final, ours[rank].final
        if theirs is None or mine is None:
            side = "original" if theirs is None else "rewrite"
            raise RecordingError(
                f"rank {rank} of the {side} left no final weights",
                "let every process return normally, not by os._exit or a signal",
            )
        walking = weights.noise(theirs, mine)
        rounding = gates.floor.gradients if gates.floor else {}
        moved = elements.moved(record.final_elements, rounding)
        for name, difference in weights.distances(theirs, mine, moved).items():
            if name not in farthest or difference > farthest[name].difference:
                mask = moved.get(name)
                out = (int(mask.sum()), mask.numel()) if mask is not None else (0, 0)
                none_left = out[0] and out[0] == out[1]
                limit = math.inf if name in walking or none_left else gates.final(name, last)
                gate = limit if math.isfinite(limit) else None
                farthest[name] = WeightComparison(
                    name, rank, difference, name in walking, gate, out
                )
    compared = tuple(farthest.values())
    parameters = original[min(original)].header.parameters
    beyond = [weight for weight in compared if weight.gate and weight.difference > weight.gate]
    if not beyond:
        return compared, None
    # Parameters before buffers: training is about them.
    worst = max(beyond, key=lambda weight: (weight.name in parameters, weight.difference))
    return compared, Difference(
        "parameters" if worst.name in parameters else "buffers",
        last,
        worst.rank,
        f"at the end, rank {worst.rank}: {worst.name} is {worst.difference:.2g} away from the "
        f"original's (gate {worst.gate:.2g}){_why(worst.name, original[worst.rank], ours[worst.rank])}",
        worst.difference,
    )


def _why(name: str, theirs: RankRecord, mine: RankRecord) -> str:
    """Explain a difference of a weight that no optimizer step explains, as far as possible."""
    parameter = name in theirs.header.parameters
    if parameter and name in theirs.optimized:
        return ""
    what = "no optimizer holds it" if parameter else "it is a buffer"
    if name in mine.unchanged and name not in theirs.unchanged:
        guess = (
            "a moving average of the weights that is not updated?"
            if parameter
            else "left in evaluation mode, or never updated?"
        )
        return f": {what}, and in the rewrite nothing changes it after the first step ({guess})"
    guess = (
        "a moving average of the weights?" if parameter else "another momentum or other batches?"
    )
    return f": {what} ({guess})"


def printed(original: Ranks, ours: Ranks, gates: Gates) -> Difference | None:
    """Return the first printed line whose numbers differ, on the first rank with such a line."""
    noisy = gates.floor.printed if gates.floor is not None else frozenset[str]()
    last = max(step.step for record in original.values() for step in record.steps)
    for rank, record in original.items():
        if unlike := meters.first_unlike(
            record.printed, ours[rank].printed, noisy, gates.printed()
        ):
            theirs, mine = unlike
            message = f"rank {rank} prints {mine.text!r}, in the original {theirs.text!r}"
            return Difference("printed", last, rank, message)
    return None

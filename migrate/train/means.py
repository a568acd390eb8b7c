"""`--global-mean`: the loss of an update is the mean over all elements of its micro-batches.

A script adds the micro-batches' means. Its program is compared with the script whose losses are weighted by
the numbers of elements before their backward.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from migrate import process
from migrate.counts import many
from migrate.prove.compare.gates import LOSS_GATE
from migrate.train.errors import TrainError
from migrate.train.options import TrainOptions
from migrate.train.proof.arrays import distance, norm
from migrate.train.proof.program import RECORD, child
from migrate.train.record import run_weighted
from migrate.train.results import GLOBAL_MEAN, TrainComparison
from migrate.train.slice.text import ScriptText
from migrate.train.write.counts import NoCount, counted_source
from migrate.train.write.texts import ProgramFacts

_OPTION = "--global-mean"
_LEAVE_OUT = f"leave {_OPTION} out"


def with_counts(facts: ProgramFacts, modeling: str) -> ProgramFacts:
    """Return the facts of a program that weights its micro-batches by counts.

    Args:
        facts: facts of the program without them.
        modeling: source of the port.

    Raises:
        TrainError: the number of elements is not visible in the loss, or does not suffice.
    """
    where = f"{facts.position}: {_OPTION}"
    if facts.rollouts:
        raise TrainError(
            f"{where}: the loop runs what it trains, so that other weights give other batches",
            _LEAVE_OUT,
        )
    if facts.statistics and facts.training:
        raise TrainError(
            f"{where}: BatchNorm has statistics of each micro-batch, so the mean over all of an update is "
            "not the loss of one batch",
            _LEAVE_OUT,
        )
    try:
        counted = counted_source(modeling)
        if not counted.inputs:
            raise NoCount("its number of elements does not come from the batch")
    except NoCount as why:
        raise TrainError(
            f"{where}: {why}",
            "write the loss as one mean (reduction='mean', or a sum divided by a mask's sum), or "
            + _LEAVE_OUT,
        ) from None
    return replace(facts, counted=counted)


def global_mean(
    place: Path,
    script: ScriptText,
    recorded: Mapping[str, Any],
    options: TrainOptions,
    work: Path,
) -> tuple[dict[str, Any], TrainComparison]:
    """Run the script with its micro-batches weighted by the program's counts, and check the counts.

    Returns:
        The record of the weighted run, and the comparison: the loss of all rows of a micro-batch must be
        the mean of the losses of its halves by their counts.

    Raises:
        TrainError: the script cannot be run so, or nothing checks the counts.
    """
    output = work / "counts.json"
    output.unlink(missing_ok=True)
    code, said = child(
        "migrate.train.proof.counts_child", (place, work / RECORD, output), options.timeout
    )
    if code != 0 or not output.exists():
        why = process.last_line(said)[:200]
        raise TrainError(f"{options.output}: its counts do not run: {why}", "correct count_of")
    answer = json.loads(output.read_text())
    counts: list[list[float]] = answer["counts"]
    if options.proof and not answer["halves"]:
        why = answer["why"] or "each micro-batch has one row"
        raise TrainError(
            f"{script.name}: {_OPTION} cannot be checked on halves of a batch: {why}",
            f"pass arguments with more rows in a batch, or {_LEAVE_OUT}",
        )
    shares = [share for update in counts for share in _shares(update)]
    weighted = dict(recorded)
    if any(share != 1 for share in shares):
        weighted = run_weighted(script, recorded, shares, options, work)
        weighted |= {"share": shares[0], "sum_of_means": recorded["summed"]}
    return weighted, _comparison(answer["halves"], counts, shares, recorded, weighted)


def _shares(counts: Sequence[float]) -> list[float]:
    whole = sum(counts)
    return [count * len(counts) / whole if whole else math.nan for count in counts]


def _comparison(
    halves: Sequence[Sequence[Sequence[float]]],
    counts: Sequence[Sequence[float]],
    shares: Sequence[float],
    recorded: Mapping[str, Any],
    weighted: Mapping[str, Any],
) -> TrainComparison:
    worst = max((_unlike(*parts) for parts in halves), default=math.inf)
    every = [count for update in counts for count in update]
    what = many(len(every), "micro-batch", "micro-batches")
    what += f" of {min(every):.0f} to {max(every):.0f} elements"
    intended = any(share != 1 for share in shares)
    if not intended:
        what += "; those of each update have the same number: the mean over all is the script's mean of means"
    else:
        apart = _apart(weighted["summed"], recorded["summed"])
        what += (
            f" have the weights {min(shares):.3g} to {max(shares):.3g}, in the script 1 (mean of means). "
            f"Gradients of the first update are {apart:.1e} from the script's own; all else is compared with "
            "the script with these weights"
        )
    same = worst <= LOSS_GATE
    cause = (
        "" if same else "the loss of a batch is not the mean of its rows by the numbers of elements"
    )
    return TrainComparison(GLOBAL_MEAN, same, worst, LOSS_GATE, what, cause, intended)


def _unlike(whole: Sequence[float], *parts: Sequence[float]) -> float:
    """Relative distance of a batch's loss from the mean of its parts; those without elements add nothing."""
    loss, count = whole
    added = sum(value * number for value, number in parts if number)
    numbers = sum(number for _, number in parts)
    if count == 0:
        return 0.0 if numbers == 0 else math.inf
    if abs(numbers - count) > LOSS_GATE * count:
        return math.inf
    difference = abs(added / count - loss)
    return math.inf if math.isnan(difference) else difference / (abs(loss) or 1.0)


def _apart(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> float:
    a, b = ({n: x.numpy() for n, x in g.items() if x is not None} for g in (ours, theirs))
    return distance(a, b) / (norm(b) or 1.0) if a.keys() == b.keys() else math.inf

"""Scripts that multiply the summed gradients of an update by one factor before the optimizer.

A factor that is the same in all updates is a constant of the program. One that changes must be a constant
divided by the number of elements that the losses of the update add: the form of a mean over all tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from migrate import process
from migrate.counts import many
from migrate.train.errors import TrainError
from migrate.train.options import TrainOptions
from migrate.train.proof.program import RECORD, child
from migrate.train.slice.text import ScriptText
from migrate.train.write.counts import NoCount, counted_source
from migrate.train.write.factor import ScaledGradients
from migrate.train.write.texts import ProgramFacts

# Relative difference up to which two factors are the same: each is measured on rounded gradients.
_LIMIT = 1e-6
_REMEDY = "divide the gradients by a constant, or by the number of elements that the loss sums"


def with_factor(
    facts: ProgramFacts, script: ScriptText, recorded: Mapping[str, Any], modeling: str
) -> ProgramFacts:
    """Return the facts of a program that multiplies its summed gradients as the script does.

    Args:
        facts: facts of the program without a factor.
        script: the script.
        recorded: its record.
        modeling: source of the port.

    Raises:
        TrainError: the factor changes, and is not divided by a number of elements of the loss.
    """
    if not recorded["scaled"]:
        return facts
    where, factors = script.at(recorded["scaled"]), _factors(recorded)
    if facts.counted:
        raise TrainError(
            f"{where}: the script multiplies the gradients of an update itself",
            "leave --global-mean out",
        )
    if _same(factors):
        return replace(facts, scaled=ScaledGradients(where, factors[0]))
    try:
        counted = counted_source(modeling, sums=True)
        if not counted.inputs:
            raise NoCount("the number of elements that the loss adds does not come from the batch")
    except NoCount as why:
        raise TrainError(f"{_changing(where, factors)}, and {why}", _REMEDY) from None
    return replace(facts, scaled=ScaledGradients(where, 1.0, counted))


def settled_factor(
    place: Path,
    script: ScriptText,
    recorded: Mapping[str, Any],
    facts: ProgramFacts,
    options: TrainOptions,
    work: Path,
) -> ProgramFacts:
    """Return the facts with the constant that is divided by the number of elements.

    Args:
        place: folder of the program, written with the constant 1.
        script: the script.
        recorded: its record.
        facts: facts of the program.
        options: folder of the program for messages, seconds for a run.
        work: folder with the record.

    Raises:
        TrainError: the factors of the script are not this constant divided by these numbers.
    """
    if facts.scaled is None or facts.scaled.counted is None:
        return facts
    output = work / "counts.json"
    code, said = child(
        "migrate.train.proof.counts_child", (place, work / RECORD, output), options.timeout
    )
    if code != 0 or not output.exists():
        why = process.last_line(said)[:200]
        raise TrainError(f"{options.output}: its counts do not run: {why}", "report this")
    counts = [sum(update) for update in json.loads(output.read_text())["counts"]]
    factors = _factors(recorded, with_batches=True)
    products = [factor * count for factor, count in zip(factors, counts, strict=True)]
    if not _same(products):
        number = next(n for n, x in enumerate(products) if not _same([products[0], x]))
        raise TrainError(
            f"{_changing(script.at(recorded['scaled']), factors)}, but the losses of update {number} add "
            f"{many(round(counts[number]), 'element')}, those of update 0 {round(counts[0])}",
            _REMEDY,
        )
    return replace(facts, scaled=replace(facts.scaled, factor=products[0]))


def factor_note(facts: ProgramFacts, recorded: Mapping[str, Any]) -> str:
    """Return a note on the factor of the gradients; "" without one."""
    if facts.scaled is None:
        return ""
    seen = many(len(_factors(recorded, with_batches=facts.scaled.counted is not None)), "update")
    where, value = facts.scaled.position, facts.scaled.value
    what = f"{where}: before it, the gradients of an update are multiplied by {value}"
    if facts.scaled.counted is None:
        return f"{what}: so the script did in each of {seen}"
    return (
        f"{what}, the number of elements that its losses add. It is counted as the loss counts them; the "
        f"script's own numbers were the same in {seen}"
    )


def _factors(recorded: Mapping[str, Any], *, with_batches: bool = False) -> list[float]:
    """Factors of the updates, in order; `with_batches`: of those whose batches are recorded."""
    later = [f for batches, f in recorded["later_scaled"] if batches or not with_batches]
    return [*(update["factor"] for update in recorded["updates"]), *later]


def _same(values: Sequence[float]) -> bool:
    return all(abs(value - values[0]) <= _LIMIT * abs(values[0]) for value in values)


def _changing(where: str, factors: Sequence[float]) -> str:
    return (
        f"{where}: before it, the gradients are multiplied by factors that change, {min(factors):.4g} to "
        f"{max(factors):.4g}"
    )

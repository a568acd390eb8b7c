"""Training mode against that of the truth in float64, dropout at rates of 0; and what dropouts draw.

Normalisations use the batch's statistics, which are compared after some batches. A torch model's dropouts are
compared with the port's by rate and by how many numbers they draw; those of the port are drawn once more, and
their shares, scales and independence held against chance.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from migrate.parity.ground.alignment import TensorPair
from migrate.parity.ground.requests import Draw, HostDrawn, TrainingDraws
from migrate.parity.ground.results import ParityCheck, Section
from migrate.parity.sides import protocol
from migrate.parity.tasks.gradients import (
    Found,
    add_weights,
    found_gradients,
    gradient_rows,
    write_cotangents,
)
from migrate.parity.tasks.outputs import compared_outputs
from migrate.parity.tasks.party import Parties, Party

SECTION = "training mode"
BATCHES = 5  # whose statistics are compared
# A correct port passes each of these but for one case in a million.
_DEVIATIONS = 5.0
_CHANCE = "5 standard deviations"


def compare_modes(parties: Parties, of_host: tuple[HostDrawn, ...] = ()) -> Section:
    """Run truth and sides in training mode and compare what they give.

    Args:
        parties: truth and sides.
        of_host: what takes the place of what torch's model draws by Python or numpy.

    Raises:
        NoGradientsError: the models have no floating output in common.
        ParityError: a side has no training mode, or does not run in it.
    """
    those = replace(parties, emulated=None)
    folders: dict[str, Path] = {}
    drawn: dict[str, TrainingDraws] = {}
    for party in those.all():
        folder = folders[party.name] = those.work / "modes" / party.name
        write_cotangents(those, party, folder / "cotangents")
        drawn[party.name] = party.side.ask(
            protocol.InTraining(
                party.settings, those.inputs, folder / "cotangents", folder, BATCHES, of_host
            )
        )
    truth = folders[those.truth.name]
    found = {one.name: found_gradients(those, one, folders[one.name], truth) for one in those.sides}
    gradients = gradient_rows(those, found)
    checks = (
        *_outputs(those, folders),
        *gradients.checks,
        *_statistics(those, folders),
        *_dropouts(drawn["A"].draws, drawn["B"].draws),
    )
    notes = (f"dropout at rates of 0, statistics after {BATCHES} batches", *gradients.notes)
    return Section(SECTION, tuple(checks), notes=notes)


def _outputs(parties: Parties, folders: dict[str, Path]) -> Iterator[ParityCheck]:
    limit = parties.outputs_limit
    given = {name: _paths(folder) for name, folder in folders.items()}
    compared = compared_outputs(parties)
    # Those of training alone have one name on both sides.
    known = {ref.path or "output" for ref in parties.truth.dump.outputs.get(0, ())}
    more = sorted(given["T"] - known)
    for path in (*compared, *more):
        pairs = [party.pair(path) or TensorPair(path, path) for party in parties.sides]
        lacking = [
            party.name
            for party, pair in zip(parties.sides, pairs, strict=True)
            if (pair.mine or "output") not in given[party.name]
        ]
        shown = f"output {path or 'of the model'}"
        if (path or "output") not in given["T"] and len(lacking) == len(pairs):
            continue  # of evaluation alone
        if lacking or (path or "output") not in given["T"]:
            yield ParityCheck(shown, None, math.inf, limit, False, "both must have it")
            continue
        values = []
        for party, pair in zip(parties.sides, pairs, strict=True):
            squares = [
                _distance(pair, folders[party.name], folders["T"], number, path)
                for number in range(parties.inputs.count)
            ]
            error, size = (math.sqrt(sum(column)) for column in zip(*squares, strict=True))
            values.append(error / size if size else (math.inf if error else 0.0))
        yield _row(parties, shown, values)


def _row(parties: Parties, name: str, values: Sequence[float]) -> ParityCheck:
    """A row of an output or of statistics: B is within the limit, or no worse than A in float32.

    A's own error counts for nothing where the truth is of its model, as for gradients; a strict profile asks
    for the limit of both.
    """
    a, b = values
    limit = parties.outputs_limit
    own = parties.truth.side is parties.a.side and not parties.profile.strict and math.isfinite(a)
    worst = max(limit, parties.profile.ratio.value * a) if own else limit
    note = (
        f"B is no worse than the run of {parties.a.name} in float32" if limit < b <= worst else ""
    )
    passed = b <= worst and (own or a <= limit)
    return ParityCheck(name, a, b, limit, passed, f"{parties.profile.name}: of outputs", note=note)


def _paths(folder: Path) -> set[str]:
    """Paths of the outputs in training."""
    from safetensors import safe_open

    with safe_open(folder / "000.safetensors", framework="numpy") as arrays:
        keys = {key for key in arrays.keys() if key.startswith("outputs/")}  # noqa: SIM118
    return {key.removeprefix("outputs/") or "output" for key in keys}


def _distance(pair: Any, mine: Path, truth: Path, number: int, path: str) -> tuple[float, float]:
    """The squares of an output's error and of its norm."""
    name = f"{number:03d}.safetensors"
    exact = _array(truth / name, path).astype(np.float64)
    found = _array(mine / name, pair.mine).astype(np.float64)
    exact = pair.as_mine(exact)
    if found.shape != exact.shape:
        return math.inf, float((exact**2).sum())
    return float(((found - exact) ** 2).sum()), float((exact**2).sum())


def _array(file: Path, path: str) -> np.ndarray[Any, Any]:
    from safetensors import safe_open

    with safe_open(file, framework="numpy") as arrays:
        keys = set(arrays.keys())
        key = next(k for k in (f"outputs/{path}", f"outputs/{path or 'output'}") if k in keys)
        found: np.ndarray[Any, Any] = arrays.get_tensor(key)
    return found


def _statistics(parties: Parties, folders: dict[str, Path]) -> Iterator[ParityCheck]:
    """The running statistics: their distance, relative to their norm."""
    found = {party.name: _found(party, folders) for party in parties.sides}
    names = dict.fromkeys(name for one in found.values() for name in one.distances)
    limit = parties.outputs_limit
    for name in names:
        values = [
            one.error / one.size if one.size else one.error
            for side in found.values()
            if (one := side.distances.get(name)) is not None
        ]
        shown = f"statistics {name.removeprefix('weights/')}"
        if len(values) < len(found):
            yield ParityCheck(shown, None, math.inf, limit, False, "both must have it")
        else:
            yield _row(parties, shown, values)
    for side in found.values():
        for name in sorted({*side.missing, *side.surplus, *side.misshapen}):
            shown = f"statistics {name.removeprefix('weights/')}"
            yield ParityCheck(shown, None, math.inf, limit, False, "both must have it")


def _found(party: Party, folders: dict[str, Path]) -> Found:
    from safetensors import safe_open

    found, name = Found(), "statistics.safetensors"
    with (
        safe_open(folders[party.name] / name, framework="numpy") as mine,
        safe_open(folders["T"] / name, framework="numpy") as exact,
    ):
        add_weights(found, party, 0, mine, exact)
    return found


def _dropouts(originals: Sequence[Draw], port: Sequence[Draw]) -> Iterator[ParityCheck]:
    """Whether the same is dropped, and by chance."""
    if not originals and not port:
        return
    lacking, surplus = _apart(originals, port)
    note = "; ".join(
        f"{what} {', '.join(f'{count} numbers at {_rate(rate)}' for rate, count in list(ones)[:3])}"
        for what, ones in (("only A draws", lacking), ("only B draws", surplus))
        if ones
    )
    wrong = float(len(lacking) + len(surplus))
    yield ParityCheck(
        "dropouts that differ", None, wrong, 0.0, not wrong, "rate and size", note=note
    )
    measured = [one for one in port if one.kept >= 0]
    if not measured:
        return
    shares = [
        abs(one.kept - (1 - one.rate))
        / math.sqrt(max(one.rate * (1 - one.rate), 1e-12) / one.count)
        for one in measured
        if 0 < one.rate < 1 and one.count > 1  # a single number has no share
    ]
    scales = [abs(one.scale * (1 - one.rate) - 1) for one in measured if one.scale and one.rate < 1]
    alike = [one.alike for one in measured]
    rows = (
        ("share that dropouts keep", shares, _DEVIATIONS, _CHANCE),
        ("scale of what they keep", scales, 1e-5, "1 / (1 - rate)"),
        ("dropouts alike", alike, _DEVIATIONS, _CHANCE),
    )
    for name, values, limit, source in rows:
        worst = max(values, default=0.0)
        yield ParityCheck(name, None, worst, limit, worst <= limit, source)


def _apart(
    originals: Sequence[Draw], port: Sequence[Draw]
) -> tuple[list[tuple[float, int]], list[tuple[float, int]]]:
    """Rates and sizes of what only one side draws; rates that the numbers do not say fit all."""
    of_a = Counter((round(one.rate, 6), one.count) for one in originals if one.rate >= 0)
    of_b = Counter((round(one.rate, 6), one.count) for one in port)
    lacking, surplus = of_a - of_b, of_b - of_a
    unknown = Counter(one.count for one in originals if one.rate < 0)
    for rate, count in list(surplus.elements()):
        if unknown[count]:
            unknown[count] -= 1
            surplus[rate, count] -= 1
    lost = [(-1.0, count) for count in unknown.elements()]
    return [*lacking.elements(), *lost], list((+surplus).elements())


def _rate(rate: float) -> str:
    return "a rate that is not known" if rate < 0 else f"{rate:g}"

"""Compare training mode with the truth in float64, at dropout rates of 0; and the draws of dropouts.

Normalizations use the batch's statistics, which are compared after some batches. A torch model's dropouts
are compared with the port's by rate and number of drawn values. The port's dropouts are drawn once more:
their retained fractions, scales and independence are tested against chance.
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
from migrate.parity.ground.settings import SideSettings
from migrate.parity.sides import protocol
from migrate.parity.tasks.gradients import (
    GradientErrors,
    add_weights,
    found_gradients,
    judged_gradients,
    write_cotangents,
)
from migrate.parity.tasks.outputs import compared_outputs
from migrate.parity.tasks.party import Parties, Party

SECTION = "training mode"
BATCHES = 5  # batches before the statistics are compared
# A correct port passes each of these, but for one case in a million.
_DEVIATIONS = 5.0
_CHANCE = "5 standard deviations"


def compare_modes(parties: Parties, of_host: tuple[HostDrawn, ...] = ()) -> Section:
    """Run truth and sides in training mode, and compare their tensors.

    Args:
        parties: truth and sides.
        of_host: replacements for what torch's model draws with Python or numpy.

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
    errors = {
        party.name: found_gradients(those, party, folders[party.name], truth)
        for party in those.sides
    }

    def moved(party: Party, settings: SideSettings, folder: Path) -> None:
        cotangents = folders[party.name] / "cotangents"
        party.side.ask(protocol.InTraining(settings, those.inputs, cotangents, folder, 0, of_host))

    gradients = judged_gradients(those, errors, truth, moved)
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
    output_paths = {name: _paths(folder) for name, folder in folders.items()}
    compared = compared_outputs(parties)
    # Outputs of training mode only have the same name on both sides.
    known = {ref.path or "output" for ref in parties.truth.dump.outputs.get(0, ())}
    more = sorted(output_paths["T"] - known)
    for path in (*compared, *more):
        pairs = [party.pair(path) or TensorPair(path, path) for party in parties.sides]
        lacking = [
            party.name
            for party, pair in zip(parties.sides, pairs, strict=True)
            if (pair.mine or "output") not in output_paths[party.name]
        ]
        shown = f"output {path or 'of the model'}"
        if (path or "output") not in output_paths["T"] and len(lacking) == len(pairs):
            continue  # an output of evaluation mode only
        if lacking or (path or "output") not in output_paths["T"]:
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
    """Row of an output or of statistics: B is within the limit, or no worse than A in float32.

    A's own error does not count where the truth is its model, as for gradients; a strict profile requires
    the limit of both.
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
    """Paths of the outputs in training mode."""
    from safetensors import safe_open

    with safe_open(folder / "000.safetensors", framework="numpy") as arrays:
        keys = {key for key in arrays.keys() if key.startswith("outputs/")}  # noqa: SIM118
    return {key.removeprefix("outputs/") or "output" for key in keys}


def _distance(pair: Any, mine: Path, truth: Path, number: int, path: str) -> tuple[float, float]:
    """Squares of an output's error and of its norm."""
    name = f"{number:03d}.safetensors"
    exact = _array(truth / name, path).astype(np.float64)
    side_output = _array(mine / name, pair.mine).astype(np.float64)
    exact = pair.as_mine(exact)
    if side_output.shape != exact.shape:
        return math.inf, float((exact**2).sum())
    return float(((side_output - exact) ** 2).sum()), float((exact**2).sum())


def _array(file: Path, path: str) -> np.ndarray[Any, Any]:
    from safetensors import safe_open

    with safe_open(file, framework="numpy") as arrays:
        keys = set(arrays.keys())
        key = next(k for k in (f"outputs/{path}", f"outputs/{path or 'output'}") if k in keys)
        array: np.ndarray[Any, Any] = arrays.get_tensor(key)
    return array


def _statistics(parties: Parties, folders: dict[str, Path]) -> Iterator[ParityCheck]:
    """Rows of the running statistics: their distance, relative to their norm."""
    errors = {party.name: _statistics_errors(party, folders) for party in parties.sides}
    names = dict.fromkeys(name for side_errors in errors.values() for name in side_errors.distances)
    limit = parties.outputs_limit
    for name in names:
        values = [
            distance.error / distance.size if distance.size else distance.error
            for side in errors.values()
            if (distance := side.distances.get(name)) is not None
        ]
        shown = f"statistics {name.removeprefix('weights/')}"
        if len(values) < len(errors):
            yield ParityCheck(shown, None, math.inf, limit, False, "both must have it")
        else:
            yield _row(parties, shown, values)
    for side in errors.values():
        for name in sorted({*side.missing, *side.surplus, *side.misshapen}):
            shown = f"statistics {name.removeprefix('weights/')}"
            yield ParityCheck(shown, None, math.inf, limit, False, "both must have it")


def _statistics_errors(party: Party, folders: dict[str, Path]) -> GradientErrors:
    from safetensors import safe_open

    errors, name = GradientErrors(), "statistics.safetensors"
    with (
        safe_open(folders[party.name] / name, framework="numpy") as mine,
        safe_open(folders["T"] / name, framework="numpy") as exact,
    ):
        add_weights(errors, party, 0, mine, exact)
    return errors


def _dropouts(originals: Sequence[Draw], port: Sequence[Draw]) -> Iterator[ParityCheck]:
    """Rows of the dropouts: whether the same values are dropped, at random."""
    if not originals and not port:
        return
    lacking, surplus = _different_draws(originals, port)
    note = "; ".join(
        f"{what} {', '.join(f'{count} numbers at {_rate(rate)}' for rate, count in list(ones)[:3])}"
        for what, ones in (("only A draws", lacking), ("only B draws", surplus))
        if ones
    )
    wrong = float(len(lacking) + len(surplus))
    yield ParityCheck(
        "dropouts that differ", None, wrong, 0.0, not wrong, "rate and size", note=note
    )
    measured = [draw for draw in port if draw.kept >= 0]
    if not measured:
        return
    shares = [
        abs(draw.kept - (1 - draw.rate))
        / math.sqrt(max(draw.rate * (1 - draw.rate), 1e-12) / draw.count)
        for draw in measured
        if 0 < draw.rate < 1 and draw.count > 1  # a single number has no fraction
    ]
    scales = [
        abs(draw.scale * (1 - draw.rate) - 1) for draw in measured if draw.scale and draw.rate < 1
    ]
    alike = [draw.alike for draw in measured]
    rows = (
        ("share that dropouts keep", shares, _DEVIATIONS, _CHANCE),
        ("scale of what they keep", scales, 1e-5, "1 / (1 - rate)"),
        ("dropouts alike", alike, _DEVIATIONS, _CHANCE),
    )
    for name, values, limit, source in rows:
        worst = max(values, default=0.0)
        yield ParityCheck(name, None, worst, limit, worst <= limit, source)


def _different_draws(
    originals: Sequence[Draw], port: Sequence[Draw]
) -> tuple[list[tuple[float, int]], list[tuple[float, int]]]:
    """Rates and sizes of draws that only one side makes; unknown rates match every rate."""
    of_a = Counter((round(draw.rate, 6), draw.count) for draw in originals if draw.rate >= 0)
    of_b = Counter((round(draw.rate, 6), draw.count) for draw in port)
    lacking, surplus = of_a - of_b, of_b - of_a
    unknown = Counter(draw.count for draw in originals if draw.rate < 0)
    for rate, count in list(surplus.elements()):
        if unknown[count]:
            unknown[count] -= 1
            surplus[rate, count] -= 1
    lost = [(-1.0, count) for count in unknown.elements()]
    return [*lacking.elements(), *lost], list((+surplus).elements())


def _rate(rate: float) -> str:
    return "a rate that is not known" if rate < 0 else f"{rate:g}"

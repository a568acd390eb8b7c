"""Judge the model's outputs, from passes without hooks; they decide whether two sides match."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from migrate.parity.dump.dump import Dump
from migrate.parity.ground.alignment import Apart, TensorPair
from migrate.parity.ground.errors import ParityError
from migrate.parity.ground.results import ParityCheck, Section, layout_text
from migrate.parity.judge.limits import TensorFinding, finding
from migrate.parity.judge.metrics import EDGES, Measurement
from migrate.parity.judge.probes import Judged, lie_as
from migrate.parity.judge.profiles import Profile

Histogram = tuple[str, tuple[float, ...], tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class Outputs:
    """Judgment on the outputs.

    Attributes:
        section: a check for each output.
        parting: the sides ("A", "B") with an output too far from the truth.
        worst: for each side, the output nearest to its limit or farthest above it, and its finding.
        floor: relative L2 of the emulation's worst output; 0 without an emulation.
        histograms: as in `results.Parity`.
        apart: outputs that are not compared, a phrase each.
        undefined: outputs in which the truth itself is NaN, and the number of such elements.
    """

    section: Section
    parting: tuple[str, ...]
    worst: Mapping[str, tuple[str, TensorFinding]]
    floor: float
    histograms: tuple[Histogram, ...]
    apart: tuple[str, ...] = ()
    undefined: Mapping[str, int] = field(default_factory=dict)


def compare_outputs(
    truth: Dump,
    a: Judged | None,
    b: Judged,
    e: Judged | None,
    profile: Profile,
    *,
    padding: Mapping[int, np.ndarray[Any, Any]] | None = None,
) -> Outputs:
    """Measure every output of the truth on both sides, against the limit after all layers.

    The arguments are those of `judge.judgement`.

    Raises:
        ParityError: there is nothing to compare.
    """
    sides = {name: side for name, side in (("A", a), ("B", b), ("E", e)) if side is not None}
    for name, side in sides.items():
        if not side.alignment.outputs and not side.alignment.apart:
            raise ParityError(
                f"no output of {name} is compared ({_shapes(side.accumulated)} and {_shapes(truth)})",
                "compare models that return tensors, and skip fewer outputs",
            )
    limit = profile.accumulated(leaves(truth)) * (1 if truth.facts.dtype == "float64" else 2)
    checks, histograms = [], []
    parting: set[str] = set()
    undefined: dict[str, int] = {}
    worst: dict[str, tuple[str, TensorFinding]] = {}
    floor = 0.0
    for path in [ref.path for ref in truth.outputs.get(min(truth.outputs, default=0), ())]:
        measured = {
            name: taken
            for name, side in sides.items()
            if (taken := _measured(truth, side, path, padding or {})) is not None
        }
        shown = path or "0"
        base = measured.get("E")
        if base is not None and "float" in base.dtype:
            floor = max(floor, base.errors().relative_l2)
        findings = {
            name: finding(
                measurement,
                base,
                profile,
                limit,
                operation=None,
                exact="float" not in measurement.dtype,
                ties="int" in measurement.dtype,
            )
            for name, measurement in measured.items()
            if name != "E"
        }
        if set(findings) != set(sides) - {"E"}:
            continue  # the output is unpaired, or left out
        nans = max(output_finding.errors.undefined for output_finding in findings.values())
        if nans:
            undefined[shown] = nans
        parting |= {name for name, output_finding in findings.items() if output_finding.breach}
        for name, output_finding in findings.items():
            if name not in worst or output_finding.severity > worst[name][1].severity:
                worst[name] = shown, output_finding
        lies = tuple(
            _layout_note(name, pair)
            for name, side in sides.items()
            for pair in side.alignment.outputs
            if name != "E" and pair.truth == path
        )
        checks.append(_check(shown, findings, profile, lies))
        counts = [(measured.get(name) or Measurement("float32")).histogram() for name in ("A", "B")]
        histograms.append((f"output {shown}", EDGES, counts[0], counts[1]))
    apart = [unpaired for side in sides.values() for unpaired in side.alignment.apart]
    checks += [_unpaired_check(unpaired) for unpaired in apart]
    notes = [note for side in sides.values() for note in side.alignment.output_notes]
    section = Section("outputs", tuple(checks), notes=tuple(dict.fromkeys(notes)))
    phrases = tuple(f"{_name(unpaired)}: {unpaired.why}" for unpaired in apart)
    return Outputs(
        section, tuple(sorted(parting)), worst, floor, tuple(histograms), phrases, undefined
    )


def leaves(truth: Dump) -> int:
    """Number of called layers without layers inside: the L of √L; at least 1."""
    parents = {layer.parent for layer in truth.layers.values()}
    return max(len({call.layer for call in truth.calls} - parents), 1)


def _measured(
    truth: Dump, side: Judged, path: str, padding: Mapping[int, np.ndarray[Any, Any]]
) -> Measurement | None:
    pair = next(
        (candidate for candidate in side.alignment.outputs if candidate.truth == path), None
    )
    if pair is None:
        return None
    measurement: Measurement | None = None
    for number, refs in sorted(truth.outputs.items()):
        ref = next((candidate for candidate in refs if candidate.path == path), None)
        mine = next(
            (
                candidate
                for candidate in side.accumulated.outputs.get(number, ())
                if candidate.path == pair.mine
            ),
            None,
        )
        if ref is None or mine is None:
            continue
        x = side.accumulated.tensor(mine)
        t = lie_as(pair, truth.tensor(ref), x.shape)
        if t is None:
            raise ParityError(
                f"output {path or '0'} has the shapes {ref.shape} and {mine.shape} on input {number}",
                "use inputs of equal length",
            )
        kept = padding.get(number)
        if kept is not None and x.ndim > 2 and x.shape[:2] == kept.shape:
            t, x = t[kept], x[kept]
        measurement = measurement or Measurement(mine.dtype, histogram=True)
        measurement.add(number, t, x)
    return measurement


def _name(apart: Apart) -> str:
    path = apart.mine if apart.truth is None else apart.truth
    return f"output {path or '0'}"


def _unpaired_check(apart: Apart) -> ParityCheck:
    """Row of an output that is not compared."""
    note = f"{apart.why}; {apart.remedy}" if apart.remedy else apart.why
    return ParityCheck(_name(apart), None, None, math.inf, False, "", note=note)


def _layout_note(side: str, pair: TensorPair) -> str:
    """Describe a layout or name of an output that differs from the truth's."""
    named = "" if pair.mine == pair.truth else f"output {pair.mine or '0'}"
    said = ", ".join(filter(None, (named, layout_text(pair.split, pair.axes, pair.shape))))
    return f"{side}: {said}" if said else ""


def _check(
    shown: str, findings: Mapping[str, TensorFinding], profile: Profile, lies: Sequence[str]
) -> ParityCheck:
    notes = [said for said in lies if said]
    for name, output_finding in findings.items():
        if output_finding.errors.not_finite:
            notes.append(f"{name}: {output_finding.errors.not_finite} elements are NaN or infinite")
        if output_finding.errors.undefined:
            notes.append(f"{output_finding.errors.undefined} elements are NaN in the truth itself")
        if output_finding.ratio is not None:
            notes.append(f"{name}: ρ {output_finding.ratio.value:.2g}")
    undefined = max(output_finding.errors.undefined for output_finding in findings.values())
    return ParityCheck(
        name=f"output {shown}",
        a=findings["A"].errors.relative_l2 if "A" in findings else None,
        b=findings["B"].errors.relative_l2,
        limit=findings["B"].limit,
        passed=not undefined
        and not any(output_finding.breach for output_finding in findings.values()),
        source="the limit of one contraction, × √depth; above it only if ρ exceeds "
        f"{profile.ratio.value:g} too",
        note="; ".join(dict.fromkeys(notes)),
        undefined=undefined,
        filled=findings["B"].errors.filled,
    )


def _shapes(dump: Dump) -> str:
    refs = dump.outputs.get(min(dump.outputs, default=0), ())
    return ", ".join(f"{ref.dtype}{list(ref.shape)}" for ref in refs) or "none"

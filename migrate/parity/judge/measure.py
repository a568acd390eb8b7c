"""Measure the probes of a layer, each tensor once; or reuse an earlier measurement."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from migrate.parity.dump.dump import Dump, TensorRef
from migrate.parity.ground.kinds import OperationClass
from migrate.parity.judge.measured import measured_of
from migrate.parity.judge.metrics import EDGES, Measurement, Sums
from migrate.parity.judge.probes import Calls, Judged, Probes, TensorLocation, TensorProbe
from migrate.parity.judge.sums import Key, compared, in_ulps, is_exact, key_of, sums_of

Array = np.ndarray[Any, Any]
Padding = Mapping[int, Array]
Histogram = tuple[str, tuple[float, ...], tuple[int, ...], tuple[int, ...]]


class Slot(NamedTuple):
    """Dump of a side ("A", "B" or "E"), of an ordinary run or (local) of a run on the truth's inputs."""

    side: str
    local: bool


Measured = Mapping[Slot, Mapping[TensorLocation, tuple[Measurement, bool]]]


class Meter:
    """Measurement of the tensors of all sides against the truth's.

    Args:
        truth: the truth.
        probes: tensors to measure, for each dump.
        padding: as in `judge.judgement`.

    Attributes:
        notes: notes on tensors that could not be compared.
    """

    def __init__(self, truth: Dump, probes: Mapping[Slot, Probes], padding: Padding) -> None:
        self._truth, self._probes, self._padding = truth, probes, padding
        # A layer's output and another layer's argument are one tensor, and E may be A.
        self._known: dict[Path, dict[Key, Sums | None]] = {}
        self.notes: list[str] = []

    def of(self, name: str, kind: OperationClass) -> Measured:
        """Measure a layer: for each dump, measurements by location, and whether they are of integers."""
        by_tensor: dict[tuple[int, str, str], list[tuple[Slot, TensorProbe]]] = defaultdict(list)
        for slot, probes in self._probes.items():
            for probe in probes.of(name):
                by_tensor[probe.input, probe.truth.file, probe.truth.key].append((slot, probe))
        measured: dict[Slot, dict[TensorLocation, tuple[Measurement, bool]]] = defaultdict(dict)
        for tensors in by_tensor.values():
            truth = _Lazy(self._truth, tensors[0][1].truth)
            for slot, probe in tensors:
                self._measure(slot, probe, truth, kind, measured[slot])
        return measured

    def _measure(
        self,
        slot: Slot,
        probe: TensorProbe,
        truth: _Lazy,
        kind: OperationClass,
        measured_at: dict[TensorLocation, tuple[Measurement, bool]],
    ) -> None:
        sums = self._of_tensor(slot, probe, truth, in_ulps(probe, kind, local=slot.local))
        if sums is None:
            note = (
                f"{slot.side}: {probe.place.layer}: {probe.mine.shape} does not fit the truth's "
                f"{probe.truth.shape} on input {probe.input}; it is not compared there"
            )
            self.notes.append(note)
            return
        if probe.place not in measured_at:
            ulps = in_ulps(probe, kind, local=slot.local)
            measured = Measurement(probe.mine.dtype, elementwise=ulps)
            measured_at[probe.place] = measured, is_exact(probe)
        measured_at[probe.place][0].take(probe.input, sums)

    def _of_tensor(self, slot: Slot, probe: TensorProbe, truth: _Lazy, ulps: bool) -> Sums | None:
        dump, key = self._probes[slot].dump, key_of(probe, ulps=ulps)
        if dump.folder not in self._known:
            self._known[dump.folder] = measured_of(dump)
        known = self._known[dump.folder]
        if key not in known:
            kept = self._padding.get(probe.input)
            known[key] = sums_of(probe, truth.array, dump.tensor(probe.mine), kept, ulps=ulps)
        return known[key]


def own_errors(
    truth: Dump,
    a: Judged | None,
    b: Judged,
    places: Sequence[tuple[str, TensorLocation]],
    padding: Padding,
) -> tuple[Histogram, ...]:
    """Return histograms of the own errors of A and B, as in `results.Parity`.

    Args:
        truth: the truth.
        a, b: the sides, with tensors.
        places: layers and tensors to include.
        padding: as in `judge.judgement`.
    """
    calls = Calls(truth)
    sides = {
        name: Probes(calls, side.local, side.alignment, fed=True)
        for name, side in (("A", a), ("B", b))
        if side is not None and side.local is not None
    }
    histograms = []
    for layer, place in places:
        counts = {"A": (), "B": ()} | {
            name: _counted(truth, probes, layer, place, padding) for name, probes in sides.items()
        }
        histograms.append((layer or "the model", EDGES, counts["A"], counts["B"]))
    return tuple(histograms)


def _counted(
    truth: Dump, probes: Probes, layer: str, place: TensorLocation, padding: Padding
) -> tuple[int, ...]:
    measured = Measurement("float32", histogram=True)
    for probe in probes.of(layer):
        if probe.place != place:
            continue
        tensors = truth.tensor(probe.truth), probes.dump.tensor(probe.mine)
        pair = compared(probe, *tensors, padding.get(probe.input))
        if pair is not None:
            measured.add(probe.input, *pair)
    return measured.histogram()


class _Lazy:
    """Tensor that is read on demand."""

    def __init__(self, dump: Dump, ref: TensorRef) -> None:
        self._dump, self._ref = dump, ref

    @functools.cached_property
    def array(self) -> Array:
        return self._dump.tensor(self._ref)

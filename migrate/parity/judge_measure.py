"""Measures what a layer's probes show, each tensor once."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

import numpy as np

from migrate.parity.dump import Dump, TensorRef
from migrate.parity.judge_probes import Place, Probe, Probes, lie_as
from migrate.parity.kinds import Operation
from migrate.parity.metrics import EDGES, Measurement, Sums, measure

Array = np.ndarray[Any, Any]
Padding = Mapping[int, Array]
Histogram = tuple[str, tuple[float, ...], tuple[int, ...], tuple[int, ...]]


class Slot(NamedTuple):
    """A dump of a side: "A", "B" or "E", as it runs or (local) on the truth's inputs."""

    side: str
    local: bool


Measured = Mapping[Slot, Mapping[Place, tuple[Measurement, bool]]]


class Meter:
    """Measures the tensors of all sides against the truth's.

    Args:
        truth: the truth.
        probes: what there is to measure, of each dump.
        padding: as of `judge.judgement`.

    Attributes:
        notes: what could not be compared.
    """

    def __init__(self, truth: Dump, probes: Mapping[Slot, Probes], padding: Padding) -> None:
        self._truth, self._probes, self._padding = truth, probes, padding
        self._sums: dict[Hashable, Sums] = {}
        self.notes: list[str] = []

    def of(self, name: str, kind: Operation) -> Measured:
        """Of each dump, what was measured at each place of a layer, and whether these are integers."""
        by_tensor: dict[tuple[int, str, str], list[tuple[Slot, Probe]]] = defaultdict(list)
        for slot, probes in self._probes.items():
            for probe in probes.of(name):
                by_tensor[probe.input, probe.truth.file, probe.truth.key].append((slot, probe))
        found: dict[Slot, dict[Place, tuple[Measurement, bool]]] = defaultdict(dict)
        for tensors in by_tensor.values():
            truth = _Lazy(self._truth, tensors[0][1].truth)
            for slot, probe in tensors:
                self._measure(slot, probe, truth, kind, found[slot])
        return found

    def histogram(self, layer: str, place: Place) -> Histogram:
        """Own errors of A and B at a place, as of `results.Parity`."""
        counts: dict[str, tuple[int, ...]] = {"A": (), "B": ()}
        for side in counts:
            probes = self._probes.get(Slot(side, True))
            measured = Measurement("float32", histogram=True)
            for probe in probes.of(layer) if probes is not None else ():
                if probe.place != place:
                    continue
                found = self._tensors(Slot(side, True), probe, _Lazy(self._truth, probe.truth))
                if found is not None:
                    measured.add(probe.input, *found)
            counts[side] = measured.histogram()
        return layer or "the model", EDGES, counts["A"], counts["B"]

    def _measure(
        self,
        slot: Slot,
        probe: Probe,
        truth: _Lazy,
        kind: Operation,
        found: dict[Place, tuple[Measurement, bool]],
    ) -> None:
        exact = "float" not in probe.truth.dtype and "float" not in probe.mine.dtype
        ulps = kind is Operation.ELEMENTWISE and slot.local and not exact
        dtype = probe.mine.dtype
        dump = self._probes[slot].dump
        # What one layer puts out and another takes is one tensor, and E may be A.
        key = (id(dump), probe.input, probe.truth.file, probe.truth.key, probe.mine.file)
        whole = (*key, probe.mine.key, probe.pair.axes, probe.pair.shape, probe.pair.split, ulps)
        if whole not in self._sums:
            tensors = self._tensors(slot, probe, truth)
            if tensors is None:
                return
            self._sums[whole] = measure(*tensors, dtype, elementwise=ulps)
        if probe.place not in found:
            found[probe.place] = Measurement(dtype, elementwise=ulps), exact
        found[probe.place][0].take(probe.input, self._sums[whole])

    def _tensors(self, slot: Slot, probe: Probe, truth: _Lazy) -> tuple[Array, Array] | None:
        """The truth's tensor as the side's lies, and the side's; without padding. None: they do not fit."""
        mine = self._probes[slot].dump.tensor(probe.mine)
        lying = lie_as(probe.pair, truth.array, mine.shape)
        if lying is None:
            note = (
                f"{slot.side}: {probe.place.layer}: {mine.shape} does not fit the truth's "
                f"{truth.array.shape} on input {probe.input}; it is not compared there"
            )
            self.notes.append(note)
            return None
        kept = self._padding.get(probe.input)
        if kept is not None and mine.ndim > 2 and mine.shape[:2] == kept.shape:
            return lying[kept], mine[kept]
        return lying, mine


class _Lazy:
    """A tensor that is read when it is needed."""

    def __init__(self, dump: Dump, ref: TensorRef) -> None:
        self._dump, self._ref = dump, ref

    @functools.cached_property
    def array(self) -> Array:
        return self._dump.tensor(self._ref)

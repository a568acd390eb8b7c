"""Judge two sides, layer by layer: errors of each layer's own operations, and accumulated errors.

Reads one tensor of the truth at a time, with the sides' tensors in its place, and keeps only sums. See
docs/parity/limits.md for how the limits act together, and against which false alarms.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from migrate.parity.dump.dump import Dump
from migrate.parity.ground.alignment import Pair
from migrate.parity.ground.kinds import OperationClass, operation
from migrate.parity.ground.results import LayerResult, LayerVerdict, SideResult, TensorLayout
from migrate.parity.judge.limits import TensorFinding, finding
from migrate.parity.judge.measure import Measured, Meter, Padding, Slot
from migrate.parity.judge.probes import Calls, Judged, Probes, TensorLocation
from migrate.parity.judge.profiles import Profile

__all__ = ["Breach", "Judged", "LayerJudgement", "judge", "judgement"]

_LOOKED_AT = 4


@dataclass(frozen=True)
class Breach:
    """Own error of a layer that exceeds its limit.

    Attributes:
        side: "A" or "B".
        layer: name in the truth.
        place: the tensor with the error: an output, or an argument that the layer passes to a layer inside
            it.
        order: position in the execution: that of the call with the output or argument.
        finding: the figures.
    """

    side: str
    layer: str
    place: TensorLocation
    order: float
    finding: TensorFinding


@dataclass(frozen=True)
class LayerJudgement:
    """Judgment on the layers.

    Attributes:
        layers: results, in order of execution.
        breaches: own errors above their limits, in order of execution.
        notes: one a line.
    """

    layers: tuple[LayerResult, ...]
    breaches: tuple[Breach, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def foremost(self) -> tuple[Breach, ...]:
        """First breach of each of the first divergent layers, as many as a reader will inspect."""
        first_breaches: dict[str, Breach] = {}
        for breach in self.breaches:
            first_breaches.setdefault(breach.layer, breach)
        return tuple(first_breaches.values())[:_LOOKED_AT]

    @property
    def first(self) -> LayerResult | None:
        """Layer where the models first diverge by their own operations."""
        if not self.breaches:
            return None
        return next(layer for layer in self.layers if layer.name == self.breaches[0].layer)


def judge(
    truth: Dump,
    a: Judged | None,
    b: Judged,
    e: Judged | None,
    profile: Profile,
    *,
    padding: Padding | None = None,
) -> tuple[LayerResult, ...]:
    """Return the layers of `judgement`."""
    return judgement(truth, a, b, e, profile, padding=padding).layers


def judgement(
    truth: Dump,
    a: Judged | None,
    b: Judged,
    e: Judged | None,
    profile: Profile,
    *,
    padding: Padding | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> LayerJudgement:
    """Measure and judge every layer.

    Args:
        truth: dump in float64. Without a truth, A's own dump, with `a` None: then B is measured against A,
            and limits are doubled, because both have errors.
        a, b: the sides.
        e: the emulation; None: the absolute limits decide alone.
        profile: the limits.
        padding: input → mask of positions [batch, length] that are *not* padding; other errors do not count.
        progress: called with the number of judged layers, and of all layers.
    """
    return _Judge(truth, {"A": a, "B": b, "E": e}, profile, padding or {}).judgement(progress)


class _Judge:
    def __init__(
        self,
        truth: Dump,
        sides: Mapping[str, Judged | None],
        profile: Profile,
        padding: Padding,
    ) -> None:
        self._truth, self._profile = truth, profile
        self._sides = {side: judged for side, judged in sides.items() if judged is not None}
        self._calls = Calls(truth)
        self._noise = 1.0 if truth.facts.dtype == "float64" else 2.0
        self._probes: dict[Slot, Probes] = {}
        for side, judged in self._sides.items():
            self._probes[Slot(side, False)] = Probes(
                self._calls, judged.accumulated, judged.alignment, fed=False
            )
            if judged.local is not None:
                self._probes[Slot(side, True)] = Probes(
                    self._calls, judged.local, judged.alignment, fed=True
                )
        self._meter = Meter(truth, self._probes, padding)
        self._breaches: list[Breach] = []
        self._notes: list[str] = []
        self._parents = {layer.parent for layer in truth.layers.values()}

    def judgement(self, progress: Callable[[int, int], None]) -> LayerJudgement:
        layers, depth = [], 0
        first = min((call.input for call in self._truth.calls), default=0)
        ends: dict[str, int] = {}
        for call in sorted(self._truth.calls, key=lambda call: call.order):
            if call.input == first:
                ends[call.layer] = call.order
        for number, (name, order) in enumerate(sorted(ends.items(), key=lambda end: end[1])):
            progress(number, len(ends))
            layers.append(self._layer(name, order, depth))
            depth += name not in self._parents
        layers += self._without_partner(len(self._truth.calls), depth)
        breaches = sorted(self._breaches, key=lambda breach: (breach.order, breach.side))
        return LayerJudgement(
            tuple(layers),
            tuple(breaches),
            tuple(dict.fromkeys((*self._meter.notes, *self._notes))),
        )

    def _layer(self, name: str, order: int, depth: int) -> LayerResult:
        layer = self._truth.layers[name]
        kind = operation(layer.kind)
        local = self._noise * self._profile.local(kind, steps=self._steps(name, kind))
        accumulated = self._noise * self._profile.accumulated(depth + 1)
        measured = self._meter.of(name, kind)
        findings = self._findings(name, measured, kind, local, accumulated)
        sides = {side: self._side(name, side, findings) for side in ("A", "B")}
        self._add_notes(name, findings)
        return LayerResult(
            name=name,
            kind=layer.kind,
            order=order,
            depth=depth,
            a=sides["A"],
            b=sides["B"],
            emulated=(self._emulated(measured, False), self._emulated(measured, True)),
            local_limit=local,
            accumulated_limit=accumulated,
            verdict=self._verdict(name, findings, sides),
        )

    def _findings(
        self,
        name: str,
        measured: Measured,
        kind: OperationClass,
        local: float,
        accumulated: float,
    ) -> dict[Slot, dict[TensorLocation, TensorFinding]]:
        findings: dict[Slot, dict[TensorLocation, TensorFinding]] = {}
        for slot, places in measured.items():
            if slot.side == "E":
                continue
            base = measured.get(Slot("E", slot.local), {})
            findings[slot] = {}
            contracts = slot.local and self._contracts_beside(name, slot.side, measured)
            for place, (measurement, integers) in places.items():
                between = place.what == "argument"
                limit = local if slot.local else accumulated
                if slot.local and (between or contracts):
                    limit = max(self._between(), 0.0 if between else local)
                findings[slot][place] = finding(
                    measurement,
                    base[place][0] if place in base else None,
                    self._profile,
                    limit,
                    operation=self._operation(slot, kind, between=between, contracts=contracts),
                    exact=integers,
                    ties=integers and not between and measurement.dtype != "bool",
                )
        return findings

    @staticmethod
    def _operation(
        slot: Slot, kind: OperationClass, *, between: bool, contracts: bool
    ) -> OperationClass | None:
        if not slot.local or contracts:
            return None
        return OperationClass.COMPOSITE if between else kind

    def _contracts_beside(self, name: str, side: str, measured: Measured) -> bool:
        """Whether a side fuses into one operation a product of the truth and a layer that the side lacks.

        The emulation continues with the truth's output of that layer (a softmax after `q @ k.T`), and shows
        the product in the layer's argument. The side shows it in the output behind.
        """
        probes, emulated = self._probes[Slot(side, True)], Slot("E", True)
        if emulated not in self._probes:
            return False
        owner: str | None = name
        while owner is not None and probes.pair(owner) is None:
            owner = self._truth.layers[owner].parent
        if owner is None or owner not in self._parents:
            return False
        if owner != name:
            measured = self._meter.of(owner, operation(self._truth.layers[owner].kind))
        plain = self._profile.operations[OperationClass.ELEMENTWISE].value
        return any(
            place.what == "argument"
            and probes.pair(place.layer) is None
            and measurement.errors().relative_l2 > plain
            for place, (measurement, _) in measured.get(emulated, {}).items()
        )

    def _between(self) -> float:
        return self._noise * self._profile.local(OperationClass.COMPOSITE)

    def _side(
        self, name: str, side: str, findings: Mapping[Slot, Mapping[TensorLocation, TensorFinding]]
    ) -> SideResult | None:
        if side not in self._sides:
            return None
        accumulated = self._probes[Slot(side, False)]
        pair = accumulated.pair(name)
        own = findings.get(Slot(side, True), {})
        if pair is None and not own:
            return None
        shown = _worst(own), _worst(findings.get(Slot(side, False), {}))
        layer = accumulated.dump.layers.get(pair.layer) if pair is not None else None
        ratio = next((worst.ratio for worst in shown if worst is not None), None)
        return SideResult(
            name=pair.layer if pair is not None else "",
            aligned=pair.how if pair is not None else "in what the next layer is given",
            defined=layer.defined if layer is not None else "",
            called=layer.called if layer is not None else "",
            accumulated=shown[1].errors if shown[1] is not None else None,
            local=shown[0].errors if shown[0] is not None else None,
            ratio=ratio,
            layouts=() if pair is None else tuple(_layouts(pair)),
        )

    def _verdict(
        self,
        name: str,
        findings: Mapping[Slot, Mapping[TensorLocation, TensorFinding]],
        sides: Mapping[str, SideResult | None],
    ) -> LayerVerdict:
        present = [side for side in self._sides if side != "E"]
        if any(sides[side] is None for side in present):
            return LayerVerdict.ALONE
        parting = [side for side in present if self._diverges(name, side, findings)]
        if parting:
            both = len(parting) == 2
            only = LayerVerdict.A_PARTS if parting == ["A"] else LayerVerdict.B_PARTS
            return LayerVerdict.BOTH_PART if both else only
        carrying = [
            side
            for side in present
            if any(
                tensor_finding.breach
                for tensor_finding in findings.get(Slot(side, False), {}).values()
            )
        ]
        if carrying:
            known = all(self._known(name, side) for side in carrying)
            return LayerVerdict.CARRIED if known else LayerVerdict.UNFED
        if any(
            tensor_finding.errors.undefined
            for places in findings.values()
            for tensor_finding in places.values()
        ):
            return LayerVerdict.UNDEFINED
        return LayerVerdict.MATCH

    def _known(self, name: str, side: str) -> bool:
        probes = self._probes.get(Slot(side, True))
        return probes is not None and (probes.fed(name) or probes.pair(name) is None)

    def _diverges(
        self, name: str, side: str, findings: Mapping[Slot, Mapping[TensorLocation, TensorFinding]]
    ) -> bool:
        """Record the breaches of a side's own error; return whether there are any."""
        parts = False
        for place, tensor_finding in findings.get(Slot(side, True), {}).items():
            if not tensor_finding.breach or (
                place.what == "output" and not self._known(name, side)
            ):
                continue
            parts = True
            self._breaches.append(Breach(side, name, place, self._order(place), tensor_finding))
        return parts

    def _order(self, place: TensorLocation) -> float:
        order = next(
            call.order for call in self._calls.by_layer[place.layer] if call.number == place.number
        )
        return order if place.what == "output" else order - 0.5

    def _emulated(self, measured: Measured, local: bool) -> float | None:
        errors = [
            measurement.errors().relative_l2
            for measurement, _ in measured.get(Slot("E", local), {}).values()
        ]
        return max(errors, default=None)

    def _steps(self, name: str, kind: OperationClass) -> int:
        """Time steps of a recurrent layer, positions of a positional layer: the longest axis that may be
        it.
        """
        if kind not in (OperationClass.RECURRENT, OperationClass.POSITIONAL):
            return 1
        refs: Iterable[Any] = (
            ref for call in self._calls.by_layer[name] for ref in (*call.arguments, *call.outputs)
        )
        return max((max(ref.shape[:2]) for ref in refs if len(ref.shape) > 2), default=1)

    def _add_notes(
        self, name: str, findings: Mapping[Slot, Mapping[TensorLocation, TensorFinding]]
    ) -> None:
        for slot, places in findings.items():
            for place, tensor_finding in places.items():
                if tensor_finding.errors.undefined:
                    self._notes.append(
                        f"the truth itself has NaN in {place.what} {place.path or '0'} of "
                        f"{place.layer or 'the model'}: nothing can be said of these elements"
                    )
                if tensor_finding.errors.not_finite and not tensor_finding.breach and slot.local:
                    self._notes.append(
                        f"{name or 'the model'}: not finite at {slot.side} and in the emulation alike"
                    )

    def _without_partner(self, order: int, depth: int) -> list[LayerResult]:
        """Results for layers of a side that the truth does not have."""
        results = []
        for side, judged in self._sides.items():
            if side == "E":
                continue
            for number, name in enumerate(judged.alignment.alone):
                layer = judged.accumulated.layers[name]
                own = SideResult(name, "", layer.defined, layer.called, None, None, None)
                result = LayerResult(
                    name,
                    layer.kind,
                    order + number,
                    depth,
                    own if side == "A" else None,
                    own if side == "B" else None,
                    (None, None),
                    self._noise * self._profile.local(operation(layer.kind)),
                    self._noise * self._profile.accumulated(depth),
                    LayerVerdict.ALONE,
                )
                results.append(dataclasses.replace(result, order=order + number))
        return results


def _layouts(pair: Pair) -> Iterator[TensorLayout]:
    for what, tensors in (("argument", pair.arguments), ("output", pair.outputs)):
        for tensor in tensors:
            if (tensor.split, tensor.axes, tensor.shape) != (None, None, None):
                yield TensorLayout(what, tensor.mine, tensor.split, tensor.axes, tensor.shape)


def _worst(findings: Mapping[TensorLocation, TensorFinding]) -> TensorFinding | None:
    return max(findings.values(), key=lambda tensor_finding: tensor_finding.severity, default=None)

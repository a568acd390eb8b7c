"""Judge two sides, layer by layer: what each layer's own operations do, and what has added up before it.

Reads one tensor of the truth at a time, and with it what the sides have in its place; kept are sums. How the
limits act together, and against which false alarms, is told in docs/parity/limits.md.
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
from migrate.parity.judge.limits import Finding, finding
from migrate.parity.judge.measure import Measured, Meter, Padding, Slot
from migrate.parity.judge.probes import Calls, Judged, Place, Probes
from migrate.parity.judge.profiles import Profile

__all__ = ["Breach", "Judged", "Judgement", "judge", "judgement"]

_LOOKED_AT = 4


@dataclass(frozen=True)
class Breach:
    """An own error of a layer that is too large.

    Attributes:
        side: "A" or "B".
        layer: in the truth's naming.
        place: at which of its tensors: an output, or what it gives to a layer inside it.
        order: position in the execution: that of the call whose output or argument it is.
        finding: the figures.
    """

    side: str
    layer: str
    place: Place
    order: float
    finding: Finding


@dataclass(frozen=True)
class Judgement:
    """All that is said of the layers.

    Attributes:
        layers: in order of execution.
        breaches: own errors that are too large, in order of execution.
        notes: a line each.
    """

    layers: tuple[LayerResult, ...]
    breaches: tuple[Breach, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def foremost(self) -> tuple[Breach, ...]:
        """The first breach of each of the first layers that part, as many as a reader looks at."""
        found: dict[str, Breach] = {}
        for one in self.breaches:
            found.setdefault(one.layer, one)
        return tuple(found.values())[:_LOOKED_AT]

    @property
    def first(self) -> LayerResult | None:
        """The layer where the models part first by their own operations."""
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
    """The layers of `judgement`."""
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
) -> Judgement:
    """Measure and judge every layer.

    Args:
        truth: float64; or, where there is none, A's own dump, with `a` None: then B is measured against A,
            and limits are doubled, as both are off.
        a, b: the sides.
        e: the emulation; None: there is none, and the absolute limits decide alone.
        profile: the limits.
        padding: input → which positions [batch, length] are *not* padding; errors elsewhere do not count.
        progress: takes the number of layers that are judged, and of all layers.
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

    def judgement(self, progress: Callable[[int, int], None]) -> Judgement:
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
        return Judgement(
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
        self._tell(name, findings)
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
    ) -> dict[Slot, dict[Place, Finding]]:
        found: dict[Slot, dict[Place, Finding]] = {}
        for slot, places in measured.items():
            if slot.side == "E":
                continue
            base = measured.get(Slot("E", slot.local), {})
            found[slot] = {}
            contracts = slot.local and self._contracts_beside(name, slot.side, measured)
            for place, (one, integers) in places.items():
                between = place.what == "argument"
                limit = local if slot.local else accumulated
                if slot.local and (between or contracts):
                    limit = max(self._between(), 0.0 if between else local)
                found[slot][place] = finding(
                    one,
                    base[place][0] if place in base else None,
                    self._profile,
                    limit,
                    operation=self._operation(slot, kind, between=between, contracts=contracts),
                    exact=integers,
                    ties=integers and not between and one.dtype != "bool",
                )
        return found

    @staticmethod
    def _operation(
        slot: Slot, kind: OperationClass, *, between: bool, contracts: bool
    ) -> OperationClass | None:
        if not slot.local or contracts:
            return None
        return OperationClass.COMPOSITE if between else kind

    def _contracts_beside(self, name: str, side: str, measured: Measured) -> bool:
        """Whether a side computes in one go what in the truth is a product, then a layer that it lacks.

        The emulation goes on with the truth's output of that layer (a softmax behind `q @ k.T`), and shows
        the product in what it gives to the layer; the side shows it in what comes behind.
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
            and one.errors().relative_l2 > plain
            for place, (one, _) in measured.get(emulated, {}).items()
        )

    def _between(self) -> float:
        return self._noise * self._profile.local(OperationClass.COMPOSITE)

    def _side(
        self, name: str, side: str, findings: Mapping[Slot, Mapping[Place, Finding]]
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
        ratio = next((one.ratio for one in shown if one is not None), None)
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
        findings: Mapping[Slot, Mapping[Place, Finding]],
        sides: Mapping[str, SideResult | None],
    ) -> LayerVerdict:
        present = [side for side in self._sides if side != "E"]
        if any(sides[side] is None for side in present):
            return LayerVerdict.ALONE
        parting = [side for side in present if self._parts(name, side, findings)]
        if parting:
            both = len(parting) == 2
            only = LayerVerdict.A_PARTS if parting == ["A"] else LayerVerdict.B_PARTS
            return LayerVerdict.BOTH_PART if both else only
        carrying = [
            side
            for side in present
            if any(one.breach for one in findings.get(Slot(side, False), {}).values())
        ]
        if carrying:
            known = all(self._known(name, side) for side in carrying)
            return LayerVerdict.CARRIED if known else LayerVerdict.UNFED
        if any(one.errors.undefined for places in findings.values() for one in places.values()):
            return LayerVerdict.UNDEFINED
        return LayerVerdict.MATCH

    def _known(self, name: str, side: str) -> bool:
        probes = self._probes.get(Slot(side, True))
        return probes is not None and (probes.fed(name) or probes.pair(name) is None)

    def _parts(
        self, name: str, side: str, findings: Mapping[Slot, Mapping[Place, Finding]]
    ) -> bool:
        """Whether a side's own error breaches; such places are remembered."""
        parts = False
        for place, one in findings.get(Slot(side, True), {}).items():
            if not one.breach or (place.what == "output" and not self._known(name, side)):
                continue
            parts = True
            self._breaches.append(Breach(side, name, place, self._order(place), one))
        return parts

    def _order(self, place: Place) -> float:
        order = next(
            call.order for call in self._calls.by_layer[place.layer] if call.number == place.number
        )
        return order if place.what == "output" else order - 0.5

    def _emulated(self, measured: Measured, local: bool) -> float | None:
        found = [one.errors().relative_l2 for one, _ in measured.get(Slot("E", local), {}).values()]
        return max(found, default=None)

    def _steps(self, name: str, kind: OperationClass) -> int:
        """Time steps of a recurrent layer, positions of a positional one: the longest axis that may be it."""
        if kind not in (OperationClass.RECURRENT, OperationClass.POSITIONAL):
            return 1
        refs: Iterable[Any] = (
            ref for call in self._calls.by_layer[name] for ref in (*call.arguments, *call.outputs)
        )
        return max((max(ref.shape[:2]) for ref in refs if len(ref.shape) > 2), default=1)

    def _tell(self, name: str, findings: Mapping[Slot, Mapping[Place, Finding]]) -> None:
        for slot, places in findings.items():
            for place, one in places.items():
                if one.errors.undefined:
                    self._notes.append(
                        f"the truth itself has NaN in {place.what} {place.path or '0'} of "
                        f"{place.layer or 'the model'}: nothing can be said of these elements"
                    )
                if one.errors.not_finite and not one.breach and slot.local:
                    self._notes.append(
                        f"{name or 'the model'}: not finite at {slot.side} and in the emulation alike"
                    )

    def _without_partner(self, order: int, depth: int) -> list[LayerResult]:
        """Layers of a side that the truth has not."""
        found = []
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
                found.append(dataclasses.replace(result, order=order + number))
        return found


def _layouts(pair: Pair) -> Iterator[TensorLayout]:
    for what, tensors in (("argument", pair.arguments), ("output", pair.outputs)):
        for one in tensors:
            if (one.split, one.axes, one.shape) != (None, None, None):
                yield TensorLayout(what, one.mine, one.split, one.axes, one.shape)


def _worst(found: Mapping[Place, Finding]) -> Finding | None:
    return max(found.values(), key=lambda one: one.severity, default=None)

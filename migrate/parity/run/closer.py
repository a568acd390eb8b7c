"""Tensors of divergent sides, on the inputs that show it: to find the cause, and to inspect the errors.

A comparison measures tensors and discards them. If all layers match, nothing needs them again.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from migrate.parity.dump.dump import Dump
from migrate.parity.dump.reference import Forced
from migrate.parity.ground.settings import TRUTH
from migrate.parity.judge.judge import Breach
from migrate.parity.run.captures import Captures
from migrate.parity.run.prepare import Prepared
from migrate.parity.run.runs import Captured
from migrate.parity.sides import protocol
from migrate.parity.sides.side import ComparedSide

_INPUTS = 2


@dataclass(frozen=True)
class Closer:
    """Truth and both sides with their tensors.

    Attributes:
        inputs: numbers of the inputs; the first shows the breach most.
        truth, a, b: their dumps on these inputs.
    """

    inputs: tuple[int, ...]
    truth: Dump
    a: Captured
    b: Captured


def look_closer(
    a: ComparedSide,
    b: ComparedSide,
    captures: Captures,
    ready: Prepared,
    breach: Breach,
    work: Path,
) -> Closer:
    """Run the truth and both sides again, if their tensors were only measured."""
    numbers = _parting_inputs(captures.truth, breach)
    if not captures.a.measured:
        return Closer(numbers, captures.truth, captures.a, captures.b)
    source, inputs, truth = a if ready.truth_of_a else b, ready.inputs, work / "truth-closer"
    source.ask(protocol.Capture(TRUTH, inputs, truth, numbers=numbers))

    def again(name: str, side: ComparedSide, captured: Captured) -> Captured:
        settings, plain, local = captured.settings, work / f"{name}-closer", work / f"{name}-fed"
        side.ask(protocol.Capture(settings, inputs, plain, numbers=numbers))
        reference = Forced(truth, captured.alignment)
        side.ask(
            protocol.Capture(
                settings, inputs, local, reference=reference, forced=True, numbers=numbers
            )
        )
        return Captured(settings, Dump(plain), captured.alignment, Dump(local))

    return Closer(numbers, Dump(truth), again("a", a, captures.a), again("b", b, captures.b))


def _parting_inputs(truth: Dump, breach: Breach) -> tuple[int, ...]:
    """Inputs on which the side's own error is the largest, the largest first; of equal errors the first."""
    place, errors = breach.place, breach.finding.errors.per_input
    inputs = [call.input for call in truth.of(place.layer) if call.number == place.number]
    if len(inputs) == len(errors):  # otherwise some inputs could not be measured
        worst = dict(zip(inputs, errors, strict=True))
        inputs.sort(key=lambda number: (-worst[number], number))
    return tuple(inputs[:_INPUTS])

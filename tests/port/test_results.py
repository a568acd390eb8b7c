"""What the verdict of a comparison says of a port."""

from __future__ import annotations

from dataclasses import replace

import pytest

from migrate.parity.ground.results import LayerVerdict, Parity, ParityCheck, ParityVerdict, Section
from migrate.port.results import LOW_PRECISION, ProofCase
from tests.parity.made import matching


def both_off(a: float, b: float, layer: LayerVerdict = LayerVerdict.MATCH) -> Parity:
    """A comparison in which both sides are further from float64 than is allowed."""
    made = matching(1)
    layers = (replace(made.layers[0], verdict=layer), *made.layers[1:])
    outputs = Section("outputs", (ParityCheck("output 0", a, b, 1e-3, False, "measured"),))
    return replace(made, layers=layers, sections=(outputs,), verdict=ParityVerdict.BOTH_WORSE)


@pytest.mark.parametrize(
    ("name", "parity", "matches"),
    [
        (LOW_PRECISION, both_off(2e-3, 2e-3), True),
        (LOW_PRECISION, both_off(2e-3, 2.9e-3), True),
        (LOW_PRECISION, both_off(2e-3, 4e-3), False),
        (LOW_PRECISION, both_off(2e-3, 2e-3, LayerVerdict.BOTH_PART), True),
        (LOW_PRECISION, both_off(2e-3, 2e-3, LayerVerdict.B_PARTS), False),
        ("float32", both_off(2e-3, 2e-3), False),
    ],
)
def test_a_port_that_is_off_as_its_original_is_no_fault(
    name: str, parity: Parity, matches: bool
) -> None:
    assert ProofCase(name, "x float32[2,3]", parity).matches is matches

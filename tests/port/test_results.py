"""What the verdict of a comparison says of a port."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from migrate.parity.ground.results import LayerVerdict, Parity, ParityCheck, ParityVerdict, Section
from migrate.port.readme import worst_text
from migrate.port.results import LOW_PRECISION, Initialization, Ported, ProofCase, with_sides
from migrate.port.sizes.results import FixedSize, Sizes
from migrate.report.text.port import port_as_json, verdict
from tests.parity.sample_comparisons import matching


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


@pytest.mark.parametrize(
    ("port", "text"),
    [
        (1.1e-2, "1.1e-02 (gradient of input x; torch's own in float32: 1.0e-02)"),
        (1e-6, "1.0e-06 (gradient of input x)"),
    ],
)
def test_a_gradient_that_is_far_off_shows_torch_s_own(port: float, text: str) -> None:
    check = ParityCheck("gradient of input x", 1e-2, port, 1e-1, True, "measured")
    parity = replace(matching(1), sections=(Section("gradients", (check,)),))
    assert worst_text(ProofCase("gradients", "x float32[2,3]", parity)) == text


@pytest.mark.parametrize(
    ("filled", "passed", "known", "matches", "text"),
    [
        (
            0,
            True,
            "row 0 (a row of padding)",
            True,
            "row 0 (a row of padding): NaN on both sides",
        ),
        (8, True, "row 0 (a row of padding)", True, "NaN in the original alone"),
        (0, False, "row 0 (a row of padding)", False, "not finite"),
        (0, True, "", False, "not finite"),
    ],
)
def test_rows_that_are_nan_in_the_original_are_named(
    filled: int, passed: bool, known: str, matches: bool, text: str
) -> None:
    first = ParityCheck("output 0", 1e-7, 1e-7, 1e-3, False, "", undefined=8, filled=filled)
    other = ParityCheck("output 1", 1e-7, 1e-7, 1e-3, passed, "")
    parity = replace(
        matching(1),
        verdict=ParityVerdict.NOT_FINITE,
        sections=(Section("outputs", (first, other)),),
    )
    case = ProofCase("padded batches", "x float32[2,3]", parity, undefined=known)
    assert case.matches is matches
    assert text in case.verdict


def test_numbers_that_are_not_finite_leave_the_json_valid() -> None:
    checks = tuple(
        ParityCheck(f"output {at}", 0.0, b, 1e-3, not at, "measured")
        for at, b in enumerate((1e-6, math.nan, 1.0))
    )
    parity = replace(matching(1), sections=(Section("outputs", checks),))
    case = ProofCase("float32", "x float32[2,3]", parity)
    assert case.worst is not None
    assert math.isnan(case.worst)
    sizes = Sizes(
        changed=(("width", 4, 6),), held=(FixedSize("cap", math.inf, ""),), distance=math.nan
    )
    port = SimpleNamespace(
        model_class="Net",
        config_class="NetConfig",
        inputs=(),
        free=(),
        baked=(),
        notes=(),
        missing=(),
        bounds=(),
    )
    ported = Ported(Path("net"), (), "net.py:Net", port, "", (case,), sizes=sizes)
    text = json.dumps(port_as_json(ported), allow_nan=False)
    report = json.loads(text)
    assert report["proof"][0]["relative_l2"] is None
    assert report["sizes"]["relative_l2"] is None
    assert report["sizes"]["held"][0]["value"] == "inf"


def test_the_headline_tells_what_agrees_and_what_does_not() -> None:
    port: Any = SimpleNamespace(missing=())
    cases = (ProofCase("float32", "", matching(1)), ProofCase("batch 1", "", matching(1)))
    ported = Ported(Path("net"), (), "net.py:Net", port, "", cases)
    assert verdict(ported) == "ported"
    rounded: Any = SimpleNamespace(setting="bfloat16", matches=False)
    start = Initialization(3, 1, {}, {"params/a": "off"}, "")
    other = replace(ported, numerics=(rounded,), initialization=start)
    agree = "comparisons in float32 agree; different"
    assert verdict(other) == f"ported; 2 of 2 {agree}: bfloat16; initialization"
    failed = replace(ported, cases=(cases[0], ProofCase("batch 1", "", None, "it raised")))
    assert verdict(failed) == f"ported; 1 of 2 {agree}: batch 1"


@pytest.mark.parametrize(
    ("otherwise", "differs", "error", "matches"),
    [
        ({}, {}, "", True),
        ({"act.weight": "its Flax layer starts with one number for all slopes"}, {}, "", False),
        ({}, {"params/act/negative_slope": "a constant is off by 0.24"}, "", False),
        ({}, {}, "the user named a module that was made, no factory", False),
    ],
)
def test_an_array_that_starts_otherwise_sets_the_exit_code(
    otherwise: dict[str, str], differs: dict[str, str], error: str, matches: bool
) -> None:
    """That the compiler knew it and names it does not make it equal."""
    assert Initialization(41, 4, otherwise, differs, error).matches is matches


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("B is worse", "the port is worse"),
        (
            "B diverges at mixer.A: where 1 is allowed",
            "the port diverges at mixer.A: where 1 is allowed",
        ),
        ("… is allowed, and A's 1e-3.", "… is allowed, and the original's 1e-3."),
        ("Both diverge at A.B (Net)", "Both diverge at A.B (Net)"),
    ],
)
def test_the_sides_of_a_port_have_names(text: str, shown: str) -> None:
    assert with_sides(text) == shown

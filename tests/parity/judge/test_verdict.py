"""The sentence says what a researcher wants to know: whether, where, by how much, why."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest

from migrate.parity.align.align import align
from migrate.parity.ground.results import ParityCause, ParityCheck, ParityVerdict, Section
from migrate.parity.judge.judge import Judged, LayerJudgement, judgement
from migrate.parity.judge.outputs import Outputs, compare_outputs, leaves
from migrate.parity.judge.profiles import find_profile
from migrate.parity.judge.verdict import Outcome, conclude, first_parting
from tests.parity.numpy_attention import WEIGHTS, Faults, flax_like, names, torch_like
from tests.parity.numpy_model import Array, Run, capture

F32 = find_profile("f32-highest")
INPUTS = [np.random.default_rng(seed).standard_normal((2, 5, 8)) for seed in range(8)]


def compared(
    folder: Path, a_faults: Faults | None = None, b_faults: Faults | None = None
) -> tuple[LayerJudgement, Outputs]:
    truth = capture(folder / "t", flax_like, WEIGHTS, INPUTS, "float64")
    sides = []
    for name, faults in (("e", {}), ("a", a_faults), ("b", b_faults)):
        model = functools.partial(flax_like, faults=faults)
        run = capture(folder / name, model, WEIGHTS, INPUTS)
        alignment = align(truth, run)
        local = capture(folder / f"{name}l", model, WEIGHTS, INPUTS, forced=(truth, alignment))
        sides.append(Judged(run, local, alignment))
    e, a, b = sides
    return judgement(truth, a, b, e, F32), compare_outputs(truth, a, b, e, F32)


def outcome(folder: Path, a: Faults | None = None, b: Faults | None = None) -> Outcome:
    return conclude(*compared(folder, a, b))


def test_a_match_tells_how_near_it_is(tmp_path: Path) -> None:
    judged, outputs = compared(tmp_path)
    found = conclude(judged, outputs)
    assert found.verdict is ParityVerdict.MATCH
    assert found.first is None
    assert first_parting(judged) is None
    assert found.sentence.startswith("B matches A: the output is ")
    assert "from float64, where 4.6e-06 is allowed" in found.sentence
    assert "no worse than a correct run in this precision (ρ 1)." in found.sentence
    (check,) = outputs.section.checks
    assert check.passed
    assert check.b is not None
    assert check.b < check.limit == pytest.approx(1e-6 * 21**0.5)
    assert 0 < outputs.floor < 1e-6
    assert outputs.histograms[0][0] == "output 0"


def test_where_it_parts_by_how_much_and_why(tmp_path: Path) -> None:
    cause = ParityCause("eps", "B adds eps 0.0001, A 1e-05.", "…", True)
    judged, outputs = compared(tmp_path, None, {1: "eps"})
    found = conclude(judged, outputs, causes=[cause])
    assert found.verdict is ParityVerdict.B_WORSE
    assert found.first is not None
    assert found.first.name == "Block_1.ln"
    assert found.sentence.startswith(
        "B diverges at Block_1.ln (LayerNorm, Block_1.ln.py:1): its own error is "
    )
    assert "where 1.0e-06 is allowed" in found.sentence
    assert found.sentence.endswith("; the cause: B adds eps 0.0001, A 1e-05.")
    likely = conclude(judged, outputs, causes=[ParityCause("eps", "other eps", "…", False)])
    assert likely.sentence.endswith("; the likely cause: other eps.")


def test_what_a_layer_gives_to_one_inside_it(tmp_path: Path) -> None:
    found = outcome(tmp_path, None, {0: "gelu"})
    assert found.first is not None
    assert found.first.name == "Block_0"
    assert "in what it gives to Block_0.down_proj: its own error is" in found.sentence


@pytest.mark.long
def test_whose_fault_it_is(tmp_path: Path) -> None:
    assert outcome(tmp_path / "a", {1: "eps"}).verdict is ParityVerdict.A_WORSE
    both = outcome(tmp_path / "both", {1: "eps"}, {1: "eps"})
    assert both.verdict is ParityVerdict.BOTH_WORSE
    assert both.sentence.startswith("Both diverge at Block_1.ln")
    later = outcome(tmp_path / "later", {2: "eps"}, {1: "eps"})
    assert later.sentence.startswith("B diverges at Block_1.ln")
    assert later.sentence.endswith("A diverges too, later.")


def test_a_section_that_fails(tmp_path: Path) -> None:
    failed = Section("gradients", (ParityCheck("gradient w", 1.0, 1.0, 0.1, False, "…"),))
    found = conclude(*compared(tmp_path), [failed])
    assert found.verdict is ParityVerdict.PARTLY
    assert found.sentence.endswith("but not everything does: gradients.")


def single(folder: Path, *functions: object) -> Outcome:
    """Models without layers but the root's."""
    dumps = []
    for number, function in enumerate(functions):

        def model(run: Run, x: Array, function: object = function) -> Array:
            return function(x)  # type: ignore[operator]

        dtype = "float64" if number == 0 else "float32"
        dumps.append(capture(folder / str(number), model, {}, INPUTS, dtype))
    truth, *others = dumps
    a, b = (Judged(dump, None, align(truth, dump)) for dump in others)
    return conclude(judgement(truth, a, b, a, F32), compare_outputs(truth, a, b, a, F32))


def test_no_layer_tells_where(tmp_path: Path) -> None:
    found = single(tmp_path, np.sin, np.sin, lambda x: np.sin(x) * np.float32(1.001))
    assert found.verdict is ParityVerdict.B_WORSE
    assert found.first is None
    assert found.sentence.startswith("B is off: the output: the error is 1.0e-03 where 1.0e-06")


def test_nan_in_words(tmp_path: Path) -> None:
    def bad(x: Array) -> Array:
        return np.where(x > 2.5, np.nan, x)

    found = single(tmp_path / "b", lambda x: x, lambda x: x, bad)
    assert "elements are NaN or infinite" in found.sentence
    both = single(tmp_path / "both", bad, bad, bad)
    assert both.verdict is ParityVerdict.NOT_FINITE
    assert both.sentence.startswith("The float64 reference itself is not finite")


def test_outputs_of_another_structure(tmp_path: Path) -> None:
    truth = capture(tmp_path / "t", torch_like, WEIGHTS, INPUTS, "float64")
    mine = capture(tmp_path / "m", lambda run, x: x.sum((0, 1)), {}, INPUTS)
    judged = Judged(mine, None, align(truth, mine))
    found = compare_outputs(truth, None, judged, None, F32)
    assert not found.section.passed
    (told,) = found.apart
    assert told.endswith(" in A and (8,) in B")
    layers = judgement(truth, None, judged, None, F32)
    assert conclude(layers, found).sentence.startswith(
        "A and B do not return the same outputs: output 0: "
    )


def test_depth_is_counted_in_leaves(tmp_path: Path) -> None:
    truth = capture(tmp_path / "t", flax_like, WEIGHTS, INPUTS[:1], "float64")
    assert leaves(truth) == 3 * 7
    assert names()

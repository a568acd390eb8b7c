"""The terminal view of a proof: numbers beside the difference between them, steps as the script took them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.table import Table

from migrate.prove.compare.compare import StepComparison, WeightComparison, steps
from migrate.prove.compare.verdict import ProofVerdict
from migrate.prove.recording.records import Header, RankRecord, StepRecord
from migrate.prove.resume import Direction, ResumeProof
from migrate.prove.settings import Settings
from migrate.report.text.prove import _steps_table, proof_summary, resume_summary
from tests.report.test_prove_page import proof, record

BEFORE = "gradient norm before clipping: original"


def compared(
    norms: tuple[float, float], clipped: tuple[Sequence[float], Sequence[float]] = ((), ())
) -> StepComparison:
    def side(norm: float, before: Sequence[float]) -> StepRecord:
        return replace(record(1, 1.0), gradient_norm=norm, clipped_from=tuple(before))

    sides = [side(norm, before) for norm, before in zip(norms, clipped, strict=True)]
    ranks = [{0: RankRecord(Header(0, 1, {}), (step,))} for step in sides]
    return steps(*ranks)[0]


@pytest.mark.parametrize(
    ("step", "title", "shown"),
    [
        (compared((2.0, 2.5)), "gradient norm: original", ["2", "2.5"]),
        (compared((1.0, 1.0), ((4.0,), (5.0,))), BEFORE, ["4", "5"]),
        (compared((1.0, 1.0), ((4.0,), (4.0,))), BEFORE, ["4", "4"]),
        (
            compared((1.0, 1.5), ((4.0,), (4.0,))),
            BEFORE,
            ["1 after clipping", "1.5 after clipping"],
        ),
        (compared((1.0, 1.5), ((1.0001,), (1.5,))), BEFORE, ["1", "1.5"]),
        # Rounding alone, larger after clipping.
        (compared((1.0, 1.0 + 3e-7), ((4.0,), (4.0,))), BEFORE, ["4", "4"]),
    ],
)
def test_the_norms_shown_are_those_that_differ(
    step: StepComparison, title: str, shown: list[str]
) -> None:
    table = _steps_table([step], ("original", "rewrite"))
    assert table.columns[5].header == title
    assert [next(iter(column.cells)) for column in table.columns[5:7]] == shown
    before, after = (float(text.split()[0]) for text in shown)
    assert step.norm_difference == pytest.approx((after - before) / before)


@pytest.mark.parametrize(
    ("taken", "said"),
    [
        (
            20,
            "each rank stopped after 20 optimizer steps (--steps): what follows, such as evaluation and "
            "saves, was not compared",
        ),
        (16, "the script takes 16 optimizer steps, fewer than --steps 20"),
    ],
)
def test_a_script_that_ends_before_the_limit_was_not_stopped(taken: int, said: str) -> None:
    assert Settings(steps=20).notes(taken) == (said,)
    assert Settings().notes(taken) == ()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("model1.head.bias", "model1.head.bias (model1: the second model that the script made)"),
        ("model1.bias", "model1.bias (model1: the second model that the script made)"),
        ("model2.bias", "model2.bias (model2: model number 3 that the script made)"),
        ("head.bias", "head.bias"),
        ("model1", "model1"),
    ],
)
def test_the_model_of_a_weight_is_named(name: str, said: str) -> None:
    weights = (WeightComparison(rank=0, name=name, difference=1e-7, gate=1e-5),)
    lines = [
        str(part) for part in proof_summary(replace(proof(ProofVerdict.MATCH), weights=weights))
    ]
    assert f"largest difference {said} on rank 0" in " ".join(lines)


def test_a_side_that_was_stopped_has_no_time() -> None:
    stopped = replace(proof(ProofVerdict.PARTED), rewritten_seconds=0.0)
    assert any("rewrite not ended, 2 ranks" in str(part) for part in proof_summary(stopped))


def test_a_run_of_the_original_is_not_called_the_rewrite() -> None:
    equal = proof(ProofVerdict.MATCH, (1.0, 1.0))
    sides = ("from its own checkpoint", "from the rewrite's")
    directions = (Direction("forward", equal), Direction("reverse", equal, sides))
    shown = list(resume_summary(ResumeProof(Path("last.pt"), directions)))
    tables = [part for part in shown if isinstance(part, Table)]
    names = [[str(column.header) for column in table.columns[2:4]] for table in tables]
    assert names == [["loss: original", "rewrite"], [f"loss: {sides[0]}", sides[1]]]
    assert any("from the rewrite's 2.5 s, 2 ranks" in str(part) for part in shown)


def test_only_the_weights_that_were_judged_are_counted() -> None:
    judged = WeightComparison("layer.weight", 1, 3e-7, gate=1e-5)
    noise = WeightComparison("layer.bias", 0, 0.4, noise=True)
    made = replace(proof(ProofVerdict.MATCH, (1.5, 1.5)), weights=(judged, noise))
    said = [line for line in proof_summary(made) if "final weights" in str(line)]
    assert said == [
        "final weights: 1 compared on every rank, largest difference layer.weight on rank 1: "
        "3.0e-07 relative L2"
    ]

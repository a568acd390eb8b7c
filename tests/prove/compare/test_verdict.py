"""Verdicts on recordings made by hand: what a run can only rarely be made to show."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from migrate.prove.compare.compare import WeightComparison
from migrate.prove.compare.verdict import ProofVerdict, judge, notes
from migrate.prove.errors import RecordingError
from migrate.prove.recording import records
from migrate.prove.recording.details import Details
from migrate.prove.recording.records import Header, RankRecord, StepRecord
from migrate.prove.recording.weights import distances, noise, save

STEP = StepRecord(
    step=1,
    optimizer=0,
    losses=(0.5,),
    gradient_norm=2.0,
    clipped_from=(),
    parameters=2,
    with_gradient=2,
    in_modules=2,
    learning_rates=(0.1,),
    checksum=(1.0, 3.0),
    dropout=0.0,
)
WEIGHTS = {"weight": torch.arange(6.0).reshape(2, 3), "bias": torch.ones(2)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(WEIGHTS, tmp_path / "equal.safetensors")
    return tmp_path


def rank(folder: Path, number: int = 0, *steps: StepRecord, size: int = 1) -> RankRecord:
    header = Header(number, size, {"weight": (2, 3), "bias": (2,)})
    numbered = [replace(step, step=index) for index, step in enumerate(steps, 1)]
    return RankRecord(header, tuple(numbered), {}, folder / "equal.safetensors")


def two_ranks(folder: Path, first: StepRecord, second: StepRecord) -> dict[int, RankRecord]:
    return {0: rank(folder, 0, first, size=2), 1: rank(folder, 1, second, size=2)}


def test_equal_recordings_are_equal(folder: Path) -> None:
    judgement = judge({0: rank(folder, 0, STEP, STEP)}, {0: rank(folder, 0, STEP, STEP)})
    assert judgement.verdict is ProofVerdict.MATCH
    assert [weight.difference for weight in judgement.weights] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("gradients", "verdict"), [((0, 0), ProofVerdict.VACUOUS), ((0, 2), ProofVerdict.MATCH)]
)
def test_an_optimizer_that_trains_nothing_on_either_side_proves_nothing(
    gradients: tuple[int, int], verdict: ProofVerdict, folder: Path
) -> None:
    steps = [replace(STEP, with_gradient=count) for count in gradients]
    judgement = judge({0: rank(folder, 0, *steps)}, {0: rank(folder, 0, *steps)})
    assert judgement.verdict is verdict
    said = "no gradient reaches any of its 2 parameters"
    assert (said in judgement.message) is (verdict is ProofVerdict.VACUOUS)


@pytest.mark.parametrize(("most", "verdict"), [(8, ProofVerdict.MATCH), (9, ProofVerdict.UNENDED)])
def test_steps_that_no_sync_ends_are_not_equal(
    most: int, verdict: ProofVerdict, folder: Path
) -> None:
    ours = replace(STEP, in_graph=most)
    judgement = judge({0: rank(folder, 0, STEP)}, {0: rank(folder, 0, ours)})
    assert judgement.verdict is verdict


def test_nothing_recorded_is_not_equal(folder: Path) -> None:
    assert judge({}, {}).verdict is ProofVerdict.NO_STEPS
    judgement = judge({0: rank(folder, 0, STEP)}, {})
    assert judgement.verdict is ProofVerdict.NO_STEPS
    assert "recorded in the rewrite" in judgement.message


def test_other_ranks_are_not_equal(folder: Path) -> None:
    judgement = judge(two_ranks(folder, STEP, STEP), {0: rank(folder, 0, STEP)})
    assert judgement.verdict is ProofVerdict.RANK_COUNT
    assert "ranks 0 to 1" in judgement.message


def test_other_step_counts_are_not_equal(folder: Path) -> None:
    judgement = judge({0: rank(folder, 0, STEP, STEP, STEP)}, {0: rank(folder, 0, STEP, STEP)})
    assert judgement.verdict is ProofVerdict.STEP_COUNT
    assert "3 steps on rank 0, the rewrite 2" in judgement.message


@pytest.mark.parametrize(("last", "dropped"), [("4x10", True), ("16x10", False)])
def test_drop_last_is_named_where_the_last_batch_is_a_short_one(
    last: str, dropped: bool, folder: Path
) -> None:
    def given(shape: str) -> StepRecord:
        return replace(STEP, details=Details(inputs=((shape, 1.0, 1.0),)))

    original = {0: rank(folder, 0, given("16x10"), given(last))}
    judgement = judge(original, {0: rank(folder, 0, given("16x10"))})
    assert judgement.verdict is ProofVerdict.STEP_COUNT
    assert ("drop_last" in judgement.message) is dropped


def test_a_difference_comes_before_the_step_count(folder: Path) -> None:
    other = replace(STEP, losses=(0.51,))
    judgement = judge({0: rank(folder, 0, STEP, STEP)}, {0: rank(folder, 0, other)})
    assert judgement.verdict is ProofVerdict.DIFFERS
    assert "loss 0.51, in the original 0.5" in judgement.message


def test_nan_on_both_sides_is_not_equal(folder: Path) -> None:
    nan = replace(STEP, losses=(math.nan,), gradient_norm=math.nan)
    judgement = judge({0: rank(folder, 0, STEP, nan)}, {0: rank(folder, 0, STEP, nan)})
    assert judgement.verdict is ProofVerdict.NOT_FINITE
    assert judgement.message.startswith("step 2, rank 0")


@pytest.mark.parametrize("swap", [False, True])
def test_nan_on_one_side_differs(folder: Path, swap: bool) -> None:
    sides = [rank(folder, 0, STEP), rank(folder, 0, replace(STEP, losses=(math.nan,)))]
    judgement = judge({0: sides[swap]}, {0: sides[not swap]})
    assert judgement.verdict is ProofVerdict.DIFFERS
    assert judgement.difference is not None
    assert judgement.difference.kind == "loss"


def test_zero_gradients_on_both_sides_are_vacuous(folder: Path) -> None:
    zero = replace(STEP, losses=(0.0,), gradient_norm=0.0)
    judgement = judge({0: rank(folder, 0, zero)}, {0: rank(folder, 0, zero)})
    assert judgement.verdict is ProofVerdict.VACUOUS


@pytest.mark.parametrize(
    ("factor", "reason"),
    [(2.0, "summed over the 2 ranks"), (0.5, "divided by the 2 ranks once more")],
)
def test_gradients_off_by_the_world_size_are_explained(
    folder: Path, factor: float, reason: str
) -> None:
    ours = replace(STEP, gradient_norm=2.0 * factor)
    judgement = judge(two_ranks(folder, STEP, STEP), two_ranks(folder, ours, ours))
    assert judgement.difference is not None
    assert judgement.difference.kind == "gradient norm"
    assert reason in judgement.message


def test_the_norm_before_clipping_is_compared(folder: Path) -> None:
    theirs = replace(STEP, gradient_norm=1.0, clipped_from=(5.0,))
    ours = replace(STEP, gradient_norm=1.0, clipped_from=(10.0,))
    judgement = judge({0: rank(folder, 0, theirs)}, {0: rank(folder, 0, ours)})
    assert "gradient norm before clipping 10, in the original 5" in judgement.message


def test_a_step_that_is_not_clipped_differs(folder: Path) -> None:
    theirs = replace(STEP, clipped_from=(2.0,))
    judgement = judge({0: rank(folder, 0, theirs)}, {0: rank(folder, 0, STEP)})
    assert "clip_grad_norm_ was called 0 times before the step, in the original 1" in (
        judgement.message
    )


def test_an_untied_weight_is_named(folder: Path) -> None:
    theirs = rank(folder, 0, STEP)
    more = Header(0, 1, theirs.header.parameters | {"head.weight": (3, 2)})
    judgement = judge({0: theirs}, {0: replace(theirs, header=more)})
    assert judgement.difference is not None
    assert judgement.difference.kind == "names"
    assert "1 more parameters, head.weight: was a shared weight" in judgement.message


def test_ranks_that_differ_in_the_original_too_are_no_fault(folder: Path) -> None:
    other = replace(STEP, checksum=(2.0, 3.0))
    recorded = two_ranks(folder, STEP, other)
    assert judge(recorded, recorded).verdict is ProofVerdict.MATCH


def test_final_weights_of_every_rank_are_compared(folder: Path) -> None:
    save(WEIGHTS | {"bias": torch.tensor([1.0, 1.01])}, folder / "other.safetensors")
    ours = two_ranks(folder, STEP, STEP)
    ours[1] = replace(ours[1], final=folder / "other.safetensors")
    judgement = judge(two_ranks(folder, STEP, STEP), ours)
    assert judgement.verdict is ProofVerdict.DIFFERS
    assert "at the end, rank 1: bias is 0.0071 away" in judgement.message


def test_a_rank_without_final_weights_is_an_error(folder: Path) -> None:
    lacking = replace(rank(folder, 0, STEP), final=None)
    with pytest.raises(RecordingError, match="rank 0 of the rewrite left no final weights"):
        judge({0: rank(folder, 0, STEP)}, {0: lacking})


def test_dropout_is_noted(folder: Path) -> None:
    record = {0: rank(folder, 0, replace(STEP, dropout=0.1))}
    assert notes(record, record, 1)[0].startswith("dropout with p=0.1 was active")


def test_distances(tmp_path: Path) -> None:
    first, second = tmp_path / "first.safetensors", tmp_path / "second.safetensors"
    nan = torch.tensor([math.nan, 1.0])
    save({"a": torch.tensor([3.0, 4.0]), "n": nan, "m": nan, "s": torch.ones(2)}, first)
    save({"a": torch.tensor([3.0, 4.5]), "n": nan, "m": torch.ones(2), "t": torch.ones(2)}, second)
    inf = math.inf
    assert distances(first, second) == {"a": 0.1, "n": 0.0, "m": inf, "s": inf, "t": inf}


@pytest.mark.parametrize(
    ("shares", "distance", "whole"),
    [
        ([0.5, 2e-8, 0.5], 0.0, False),  # the bias of query, key and value
        ([0.5, 0.0, 0.5], 0.5, False),  # no gradient at all is no noise
        ([0.5, 1e-5, 0.5], 0.5, False),
        ([2e-8, 2e-8, 2e-8], 0.5, True),
    ],
)
def test_a_third_that_is_noise_is_left_out(
    shares: list[float], distance: float, whole: bool, tmp_path: Path
) -> None:
    first, second = tmp_path / "first.safetensors", tmp_path / "second.safetensors"
    save({"bias": torch.tensor([0.0, 0.0, 1.0, 1.0, 1.0, 1.0])}, first, {"bias": shares})
    save({"bias": torch.tensor([0.0, 0.0, 2.0, 1.0, 1.0, 1.0])}, second, {"bias": shares})
    assert distances(first, second) == {"bias": distance}
    assert noise(first, second) == ({"bias"} if whole else frozenset())


def test_recordings_are_read_back(tmp_path: Path) -> None:
    header = Header(0, 2, {"weight": (2, 3)})
    text = records.line(header) + records.line(STEP)
    (tmp_path / "rank0.pid7.jsonl").write_text(text)
    save(WEIGHTS, records.snapshot_path(tmp_path, 0, 0, 1))
    save(WEIGHTS, records.final_path(tmp_path, 0))
    (record,) = records.read(tmp_path).values()
    assert (record.header, record.steps) == (header, (STEP,))
    assert list(record.snapshots) == [(0, 1)]
    assert record.final == records.final_path(tmp_path, 0)

    (tmp_path / "rank0.pid8.jsonl").write_text(text)
    with pytest.raises(RecordingError, match="two processes of the run have rank 0"):
        records.read(tmp_path)
    (tmp_path / "rank0.pid8.jsonl").write_text(text[:-9])
    with pytest.raises(RecordingError, match=r"rank0.pid8.jsonl is cut short"):
        records.read(tmp_path)


def test_a_note_names_three_of_many_weights() -> None:
    walking = [WeightComparison(f"w{index}", 0, 0.5, True, None) for index in range(5)]
    assert notes({}, {}, 1, walking)[0].startswith("w0, w1, w2 and 2 more: gradients are zero")
    assert notes({}, {}, 1, walking[:3])[0].startswith("w0, w1, w2: gradients are zero")

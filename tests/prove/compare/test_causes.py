"""What is said of a difference, on recordings made by hand: each cause, and that it needs its evidence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from migrate.prove.compare.difference import Difference
from migrate.prove.compare.verdict import ProofVerdict, judge, judge_with_floor
from migrate.prove.recording.details import Details
from migrate.prove.recording.records import Header, RankRecord, StepRecord
from migrate.prove.recording.weights import save

BATCH = (("16x10", 3.0, 160.0),)
OTHER = (("16x10", -5.0, 150.0),)
LINES = {"backward": "train.py:9", "optimizer": "train.py:3", "step": "train.py:10"}
DETAILS = Details(
    lines=LINES,
    start=(1.0, 20.0),
    kind="SGD",
    settings=({"parameters": 2, "momentum": 0.9},),
    zeroed=1,
    inputs=BATCH,
    labels=BATCH,
    dtypes={"net (linear)": ("float16",)},
)
STEP = StepRecord(
    step=1,
    optimizer=0,
    losses=(0.5, 0.7),
    gradient_norm=2.0,
    clipped_from=(),
    parameters=2,
    with_gradient=2,
    in_modules=2,
    learning_rates=(0.1,),
    checksum=(1.0, 3.0),
    dropout=0.0,
    details=DETAILS,
)
NORM = replace(STEP, gradient_norm=2.5)


@pytest.fixture
def final(tmp_path: Path) -> Path:
    save({"weight": torch.ones(3), "average": torch.ones(2)}, tmp_path / "final")
    return tmp_path / "final"


def ranks(final: Path, *each: list[StepRecord]) -> dict[int, RankRecord]:
    """Ranks with these steps, numbered."""
    shapes: dict[str, tuple[int, ...]] = {"weight": (3,), "average": (2,)}
    return {
        number: RankRecord(
            Header(number, len(each), shapes),
            tuple(replace(step, step=index) for index, step in enumerate(steps, 1)),
            {},
            final,
            optimized=frozenset({"weight"}),
        )
        for number, steps in enumerate(each)
    }


def found(original: dict[int, RankRecord], ours: dict[int, RankRecord]) -> Difference:
    assert judge(original, original).verdict is ProofVerdict.MATCH
    difference = judge(original, ours).difference
    assert difference is not None
    return difference


def with_details(step: StepRecord, **changes: object) -> StepRecord:
    return replace(step, details=replace(step.details, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("theirs", "ours", "says"),
    [
        (
            STEP,
            with_details(NORM, inputs=OTHER),
            "the model gets other data (another shuffle",
        ),
        (
            STEP,
            with_details(NORM, inputs=(("4x10", 3.0, 160.0),)),
            "the model gets 4x10, in the original 16x10",
        ),
        (
            STEP,
            with_details(NORM, labels=OTHER),
            "the inputs of the model are equal, the labels are not (backward: train.py:9",
        ),
        (
            STEP,
            with_details(NORM, start=(1.1, 20.1)),
            "the weights differ before the first step (another seed",
        ),
        (
            STEP,
            with_details(NORM, evaluating=3),
            "3 modules are in evaluation mode, in the original 0 (is model.train() missing?)",
        ),
        (
            with_details(STEP, synchronized=2),
            NORM,
            "0 batch normalizations are over all ranks, in the original 2 (is SyncBatchNorm lost?)",
        ),
        (
            replace(STEP, clipped_from=(5.0,)),
            replace(NORM, clipped_from=(5.0,)),
            "and 5 on both sides before clipping: clipped to another max_norm",
        ),
        (
            replace(STEP, clipped_from=(5.0,)),
            replace(NORM, clipped_from=(5.0 * 65536,)),
            "clip_grad_norm_ saw gradients 65536 times as large, those of a scaled loss",
        ),
        (
            STEP,
            replace(STEP, gradient_norm=4.0, losses=(1.0, 1.4)),
            "the loss is not divided by the number of accumulated backward passes, 2",
        ),
        (
            STEP,
            replace(STEP, gradient_norm=1.0, losses=(0.25, 0.35)),
            "the loss is divided once more by the number of accumulated backward passes, 2",
        ),
        (STEP, NORM, "in the original 2 (backward: train.py:9, train.py:9 in the original)"),
    ],
)
def test_another_gradient_norm_is_explained(
    theirs: StepRecord, ours: StepRecord, says: str, final: Path
) -> None:
    difference = found(ranks(final, [theirs]), ranks(final, [ours]))
    assert difference.kind == "gradient norm"
    assert says in difference.message


def test_data_of_another_rank_explain_an_averaged_gradient(final: Path) -> None:
    original = ranks(final, [STEP], [replace(STEP, losses=(0.4, 0.6))])
    other = with_details(replace(NORM, losses=(0.4, 0.6)), inputs=OTHER)
    difference = found(original, ranks(final, [NORM], [other]))
    assert difference.kind == "gradient norm"
    assert "rank 0" in difference.message
    assert "on rank 1 the model gets other data" in difference.message


def test_batches_of_an_earlier_step_are_named(final: Path) -> None:
    original = ranks(final, [STEP, with_details(STEP, inputs=OTHER)])
    difference = found(original, ranks(final, [STEP, NORM]))
    assert "the batches are those of step 1 again" in difference.message
    # Where the original repeats them too, that explains nothing.
    again = found(ranks(final, [STEP, STEP]), ranks(final, [STEP, NORM]))
    assert "again" not in again.message


LATER = with_details(replace(STEP, gradient_norm=2.5), zeroed=0)


@pytest.mark.parametrize(
    ("ours", "says"),
    [
        (LATER, "gradients of earlier steps are still there (is zero_grad missing?)"),
        (with_details(LATER, zeroed=1), "the backward pass differs, or gradients of earlier steps"),
        # Gradients that are left over are as large as those of the step.
        (replace(LATER, gradient_norm=2 * (1 + 4e-5)), "in the original 2 (backward: train.py:9"),
    ],
)
def test_a_missing_zero_grad_needs_a_difference_of_its_size(
    ours: StepRecord, says: str, final: Path
) -> None:
    difference = found(ranks(final, [STEP, STEP]), ranks(final, [STEP, ours]))
    assert (difference.kind, difference.step) == ("gradient norm", 2)
    assert says in difference.message
    assert ("earlier steps" in difference.message) is ("earlier steps" in says)


def test_losses_that_are_equal_but_for_rounding_are_no_sign_of_equal_data(final: Path) -> None:
    near = replace(STEP, losses=(0.5, 0.7 + 1e-7))
    difference = found(ranks(final, [STEP], [near]), ranks(final, [NORM], [NORM]))
    assert "same data" not in difference.message


def test_one_of_two_clippings_that_is_equal_is_no_cause(final: Path) -> None:
    original = ranks(final, [replace(STEP, clipped_from=(5.0, 3.0))])
    difference = found(original, ranks(final, [replace(NORM, clipped_from=(5.0, 4.0))]))
    assert "max_norm" not in difference.message


@pytest.mark.parametrize(
    ("norm", "says"),
    [(2.0, ", after gradients of the same norm"), (2.5, ": gradients are not averaged")],
)
def test_gradients_that_are_not_averaged_differ(norm: float, says: str, final: Path) -> None:
    apart = replace(STEP, checksum=(1.0, 3.0 + 1e-6), gradient_norm=norm)
    difference = found(ranks(final, [STEP], [STEP]), ranks(final, [STEP], [apart]))
    assert says in difference.message


def test_ranks_that_start_apart_are_named(final: Path) -> None:
    apart = with_details(replace(STEP, checksum=(9.0, 9.0)), start=(2.0, 30.0))
    difference = found(ranks(final, [STEP], [STEP]), ranks(final, [STEP], [apart]))
    assert difference.kind == "ranks apart"
    assert "they started from different ones" in difference.message


@pytest.mark.parametrize(
    ("other", "kind", "says"),
    [
        (
            with_details(STEP, settings=({"parameters": 2, "momentum": 0.8},)),
            "optimizer",
            "momentum of parameter group 0 is 0.8, in the original 0.9 (optimizer: train.py:3",
        ),
        (
            with_details(STEP, settings=({"parameters": 1, "momentum": 0.9},)),
            "optimizer",
            "the number of parameters of parameter group 0 is 1, in the original 2",
        ),
        (
            replace(STEP, losses=(0.5,)),
            "accumulation",
            "1 backward passes before the step, in the original 2",
        ),
        (
            with_details(STEP, dtypes={"net (linear)": ("float32",)}),
            "dtypes",
            "matrix multiplications ran in float32, in the original in float16: net (linear) (is "
            "autocast lost?)",
        ),
        (
            with_details(replace(STEP, with_gradient=1), without_gradient=("weight",)),
            "gradient count",
            "none have weight (requires_grad off, or detached?)",
        ),
        (
            replace(STEP, parameters=1, with_gradient=1),
            "gradient count",
            "the optimizer is given others (optimizer: train.py:3",
        ),
    ],
)
def test_a_setting_is_a_difference_by_itself(
    other: StepRecord, kind: str, says: str, final: Path
) -> None:
    difference = found(ranks(final, [STEP]), ranks(final, [other]))
    assert difference.kind == kind
    assert says in difference.message


def test_a_setting_that_only_one_side_changes_later_is_found(final: Path) -> None:
    same = with_details(STEP, settings=())
    other = with_details(STEP, settings=({"parameters": 2, "momentum": 0.5},))
    original = ranks(final, [STEP, same, other])
    difference = found(original, ranks(final, [STEP, same, same]))
    assert (difference.kind, difference.step) == ("optimizer", 3)
    assert "momentum of parameter group 0 is 0.9, in the original 0.5" in difference.message


@pytest.mark.parametrize(
    "dtypes",
    [
        {"net (linear)": ("bfloat16",)},  # what float16 becomes on a TPU
        {"net (linear)": ("bfloat16", "float32")},
        {"other (linear)": ("float32",)},  # only on one side
        {},
    ],
)
def test_the_same_precision_is_no_difference(
    dtypes: dict[str, tuple[str, ...]], final: Path
) -> None:
    ours = ranks(final, [with_details(STEP, dtypes=dtypes)])
    assert judge(ranks(final, [STEP]), ours).verdict is ProofVerdict.MATCH


def test_a_schedule_that_runs_ahead_is_named(final: Path) -> None:
    scheduled = with_details(STEP, lines=LINES | {"scheduler": "train.py:12"})
    rates = [replace(scheduled, learning_rates=(rate,)) for rate in (0.1, 0.2, 0.3, 0.4)]
    ahead = found(ranks(final, rates), ranks(final, [rates[0], rates[2], rates[3]]))
    assert ahead.step == 2
    assert (
        "which the original has at step 3: scheduler.step() is called more often" in ahead.message
    )
    assert "(scheduler: train.py:12" in ahead.message
    behind = found(ranks(final, rates), ranks(final, [rates[0], rates[0], rates[1]]))
    assert "which the original has at step 1: scheduler.step() is called less often" in (
        behind.message
    )


@pytest.mark.parametrize(
    ("unchanged", "says"),
    [
        (
            {"average"},
            "nothing changes it after the first step (a moving average of the weights that",
        ),
        (set(), "no optimizer holds it (a moving average of the weights?)"),
    ],
)
def test_a_weight_that_no_optimizer_holds(unchanged: set[str], says: str, final: Path) -> None:
    original = ranks(final, [STEP])
    other = final.with_name("other")
    save({"weight": torch.ones(3), "average": torch.full((2,), 1.5)}, other)
    ours = ranks(other, [STEP])
    ours[0] = replace(ours[0], unchanged=frozenset(unchanged))
    assert says in found(original, ours).message


def printing(final: Path, *lines: str) -> dict[int, RankRecord]:
    (record,) = ranks(final, [STEP]).values()
    return {0: replace(record, printed=lines)}


def test_a_printed_line_is_the_last_that_is_compared(final: Path) -> None:
    original, ours = printing(final, "epoch 0: loss 0.50"), printing(final, "epoch 0: loss 0.60")
    difference = found(original, ours)
    assert difference.kind == "printed"
    assert difference.message == (
        "rank 0 prints 'epoch 0: loss 0.60', in the original 'epoch 0: loss 0.50'"
    )


def test_a_line_that_the_original_prints_differently_each_time_is_no_difference(
    final: Path,
) -> None:
    original, ours = printing(final, "score 0.50"), printing(final, "score 0.60")
    again = printing(final, "score 0.70")
    assert judge_with_floor(original, ours, lambda: original).verdict is ProofVerdict.DIFFERS
    assert judge_with_floor(original, ours, lambda: again).verdict is ProofVerdict.MATCH


def test_a_printed_loss_is_held_to_the_noise_of_the_losses(final: Path) -> None:
    original, ours = printing(final, "loss 0.5000"), printing(final, "loss 0.5030")
    (record,) = original.values()
    noisy = replace(STEP, losses=(0.5, 0.7014))
    again = {0: replace(record, steps=(noisy,))}
    assert judge_with_floor(original, ours, lambda: original).verdict is ProofVerdict.DIFFERS
    assert judge_with_floor(original, ours, lambda: again).verdict is ProofVerdict.MATCH

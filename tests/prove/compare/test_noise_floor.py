"""The noise floor: judged by records made by hand, and by a net that differs from itself."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from migrate.prove.compare.gates import (
    CEILING,
    GRADIENT_GATE,
    KEEP_FLOAT32,
    MORE_NOISE_RUNS,
    NOISE_RUNS,
    PARAMETER_GATE,
    SMALL,
    Gates,
    judged_noise,
)
from migrate.prove.compare.noise_floor import NoiseFloor, StepFloor, noise_floor
from migrate.prove.compare.verdict import ProofVerdict, judge, judge_with_floor, notes
from migrate.prove.proof import Proof, prove, record_run
from migrate.prove.recording.records import RankRecord, StepRecord
from migrate.prove.recording.weights import save
from migrate.prove.settings import Settings
from migrate.report.text.prove import proof_as_json, proof_summary
from tests.prove.compare.test_verdict import STEP, WEIGHTS, folder, rank
from tests.prove.test_prove import AFTER, BEFORE, edited
from tests.waiting import LIMIT

__all__ = ["folder"]  # the fixture
WITHIN = "within 4 times the noise of the original"
WAS_RUN = "the original was run"


def differs(by: str) -> str:
    return f"differs from itself by {by}"


def norm(relative: float, number: int = 1) -> StepRecord:
    return replace(STEP, step=number, gradient_norm=2.0 * (1 + relative))


def one_rank(folder: Path, *steps: StepRecord) -> dict[int, RankRecord]:
    return {0: rank(folder, 0, *steps)}


def test_without_a_floor_the_fixed_gates_hold() -> None:
    gates = Gates()
    assert gates.gradient(0, 3) == GRADIENT_GATE
    assert gates.parameter("weight", 0, 4) == 2 * PARAMETER_GATE
    assert gates.final("weight", 9) == 3 * PARAMETER_GATE
    assert not gates.blind(0, 1)


def test_a_gate_is_four_times_the_floor_where_that_is_more() -> None:
    steps = (StepFloor(1, 0, 1e-6, {"weight": 1e-4}), StepFloor(2, 0, 1e-4, {"weight": 1e-4}))
    gates = Gates(NoiseFloor(steps, {"weight": 2e-4, "bias": 2 * CEILING}))
    assert gates.gradient(0, 1) == gates.loss(0, 1) == GRADIENT_GATE
    assert gates.gradient(0, 2) == gates.loss(0, 2) == 4e-4
    # The second run made two steps only; another optimizer has a floor of its own.
    assert gates.loss(0, 7) == 4e-4
    assert gates.loss(1, 1) == GRADIENT_GATE
    assert gates.parameter("weight", 0, 1) == 4e-4
    assert gates.parameter("bias", 0, 1) == PARAMETER_GATE
    assert gates.final("weight", 2) == 8e-4
    assert gates.final("bias", 2) == float("inf")


def test_the_floor_is_the_largest_of_all_ranks_so_far(folder: Path) -> None:
    save(WEIGHTS | {"bias": torch.tensor([1.0, 1.001])}, folder / "other.safetensors")
    original = {number: rank(folder, number, STEP, STEP, STEP) for number in (0, 1)}
    again = {
        0: rank(folder, 0, norm(1e-5), norm(0), norm(3e-4)),
        1: rank(folder, 1, norm(0), norm(2e-4), norm(1e-4)),
    }
    again[1] = replace(again[1], final=folder / "other.safetensors")
    floor = noise_floor(original, again)
    assert [step.values for step in floor.steps] == pytest.approx([1e-5, 2e-4, 3e-4])
    assert floor.final == {"weight": 0.0, "bias": pytest.approx(1e-3 / 2**0.5, rel=1e-3)}


def of_addends(*norms: float) -> StepRecord:
    return replace(STEP, gradient_norm=math.hypot(*norms), norms=norms)


def test_differences_that_cancel_in_a_gradient_norm_are_noise_all_the_same(folder: Path) -> None:
    original = one_rank(folder, of_addends(1.0, 1.0))
    # One addend is larger by as much as the other is smaller: the norm is the same.
    again = one_rank(folder, of_addends(1.0 + 1e-4, 1.0 - 1e-4))
    floor = noise_floor(original, again)
    assert floor.at(0, 1).values < 1e-8
    assert floor.at(0, 1).norms == pytest.approx(1e-4 / 2**0.5, rel=1e-3)
    gate = Gates(floor).gradient(0, 1)
    assert gate == pytest.approx(4e-4 / 2**0.5, rel=1e-3)
    # Another run, in which they do not cancel.
    ours = one_rank(folder, of_addends(1.0 + 1e-4, 1.0 + 1e-4))
    assert judge(original, ours).verdict is ProofVerdict.DIFFERS
    judgement = judge(original, ours, floor)
    assert judgement.verdict is ProofVerdict.MATCH
    assert judgement.floor is not None
    assert judged_noise(judgement.floor) == (pytest.approx(7.1e-5, rel=0.01), 0)
    # What is more than that is found, and what might have been makes no step blind.
    ours = one_rank(folder, of_addends(1.0 + 4e-4, 1.0 + 4e-4))
    assert judge(original, ours, floor).verdict is ProofVerdict.DIFFERS
    loud = noise_floor(original, one_rank(folder, of_addends(1.1, (2 - 1.1**2) ** 0.5)))
    assert not Gates(loud).blind(0, 1)
    assert Gates(loud).gradient(0, 1) == 4 * CEILING


def test_snapshots_have_a_floor_of_their_own(folder: Path) -> None:
    save(WEIGHTS | {"bias": torch.tensor([1.0, 1.001])}, folder / "other.safetensors")
    files = [folder / "equal.safetensors", folder / "other.safetensors"]
    a, b = ({0: replace(rank(folder, 0, STEP), snapshots={(0, 1): file})} for file in files)
    assert judge(a, b).difference is not None
    floor = noise_floor(a, b)
    assert floor.at(0, 1).parameters["bias"] == pytest.approx(7e-4, rel=0.02)
    assert judge(a, b, floor).verdict is ProofVerdict.MATCH


@pytest.mark.parametrize(
    ("noise", "verdict"),
    [(3e-5, ProofVerdict.MATCH), (1e-5, ProofVerdict.DIFFERS), (0.0, ProofVerdict.DIFFERS)],
)
def test_a_small_difference_is_judged_by_the_noise(
    noise: float, verdict: ProofVerdict, folder: Path
) -> None:
    judgement = judge_with_floor(
        one_rank(folder, STEP),
        one_rank(folder, norm(4.4e-5)),
        lambda: one_rank(folder, norm(noise)),
    )
    assert judgement.verdict is verdict
    if verdict is ProofVerdict.MATCH:
        assert judgement.floor is not None
        assert judged_noise(judgement.floor) == (pytest.approx(3.0e-5, rel=0.01), 0)
        (note,) = notes({}, {}, 1, judgement.weights, judgement.floor)
        assert "The values that are judged differ by up to 3.0e-05 in losses" in note
    else:
        assert "4.4e-05, more than 4 times the rounding noise" in judgement.message


def test_steps_that_agree_by_noise_say_so_where_one_side_made_more(folder: Path) -> None:
    original = one_rank(folder, STEP, STEP)
    floor = noise_floor(original, one_rank(folder, norm(3e-5), STEP))
    judgement = judge(original, one_rank(folder, norm(4.4e-5)), floor)
    assert judgement.verdict is ProofVerdict.STEP_COUNT
    assert f"the steps of both agree, {WITHIN}" in judgement.message


@pytest.mark.parametrize("noise", [3e-5, 0.0])
def test_the_json_has_the_noise_by_which_two_sides_are_equal(noise: float, folder: Path) -> None:
    judgement = judge_with_floor(
        one_rank(folder, STEP),
        one_rank(folder, norm(4.4e-5)),
        lambda: one_rank(folder, norm(noise)),
    )
    proof = Proof(replicas=1, notes=(), original_seconds=1, rewritten_seconds=1, **vars(judgement))
    found = proof_as_json(proof)
    if noise:
        expected = {"times": 4, "losses_and_gradient_norms": pytest.approx(noise), "weights": 0}
        assert found["within_noise"] == expected
        assert found["message"] == judgement.message
        assert judgement.message in str(list(proof_summary(proof)))
    else:
        assert found["within_noise"] is None


@pytest.mark.parametrize(
    "ours",
    [
        STEP,
        norm(0.02),
        replace(STEP, learning_rates=(0.2,)),
        replace(STEP, clipped_from=(2.0,)),
        replace(STEP, losses=(0.5, 0.5)),
        replace(STEP, with_gradient=1),
    ],
)
def test_the_original_runs_again_only_in_doubt(ours: StepRecord, folder: Path) -> None:
    def again() -> dict[int, RankRecord]:
        raise AssertionError

    judgement = judge_with_floor(one_rank(folder, STEP), one_rank(folder, ours), again)
    assert judgement.floor is None
    assert (judgement.verdict is ProofVerdict.MATCH) == (ours is STEP)


@pytest.mark.parametrize(
    ("noise", "verdict"), [(0.5, ProofVerdict.NOISE), (1e-4, ProofVerdict.DIFFERS)]
)
def test_far_gradients_in_bfloat16_are_measured_once(
    noise: float, verdict: ProofVerdict, folder: Path
) -> None:
    samples = iter([one_rank(folder, norm(noise))])
    original, ours = one_rank(folder, STEP), one_rank(folder, norm(0.9))
    judgement = judge_with_floor(original, ours, lambda: next(samples), bfloat16=True)
    assert judgement.verdict is verdict, judgement.message
    assert ("--amp off" in judgement.message) == (verdict is ProofVerdict.NOISE)


def test_amp_off_is_no_remedy_for_parameters_in_bfloat16(folder: Path) -> None:
    save({name: value.bfloat16() for name, value in WEIGHTS.items()}, folder / "equal.safetensors")
    samples = iter([one_rank(folder, norm(0.5))])
    original, ours = one_rank(folder, STEP), one_rank(folder, norm(0.9))
    judgement = judge_with_floor(original, ours, lambda: next(samples), bfloat16=True)
    assert judgement.verdict is ProofVerdict.NOISE
    assert f"({KEEP_FLOAT32})" in judgement.message


def test_a_noise_that_came_out_small_is_measured_again(folder: Path) -> None:
    original, ours = one_rank(folder, STEP), one_rank(folder, norm(1e-4))
    quiet, loud = one_rank(folder, norm(1e-6)), one_rank(folder, norm(5e-5))
    samples = iter([quiet, loud, quiet])
    judgement = judge_with_floor(original, ours, lambda: next(samples))
    assert judgement.verdict is ProofVerdict.MATCH, judgement.message
    assert judgement.floor is not None
    assert (judgement.floor.runs, judgement.floor.steps[0].values) == (2, pytest.approx(5e-5))
    (note,) = notes(original, ours, 1, judgement.weights, judgement.floor)
    assert note.startswith(f"{WAS_RUN} three times")

    # What shows in some directions only needs more samples; a larger difference has had enough of them.
    samples = iter([*[quiet] * (NOISE_RUNS + MORE_NOISE_RUNS - 1), loud])
    judgement = judge_with_floor(original, ours, lambda: next(samples))
    assert judgement.verdict is ProofVerdict.MATCH
    for far, runs in ((1e-4, NOISE_RUNS + MORE_NOISE_RUNS), (2 * SMALL, NOISE_RUNS)):
        samples = iter([quiet] * runs)
        judgement = judge_with_floor(
            original, one_rank(folder, norm(far)), lambda left=samples: next(left)
        )
        assert judgement.verdict is ProofVerdict.DIFFERS
        assert judgement.floor is not None
        assert judgement.floor.runs == runs
        assert next(samples, None) is None
        pointed = judgement.message.endswith("docs/explanation/noise.md says how to tell")
        assert pointed is (far < SMALL)


def test_a_second_run_that_fails_leaves_the_difference(folder: Path) -> None:
    judgement = judge_with_floor(
        one_rank(folder, STEP), one_rank(folder, norm(4.4e-5)), lambda: None
    )
    assert judgement.verdict is ProofVerdict.DIFFERS


@pytest.mark.parametrize(
    ("rounded", "verdict", "says"),
    [
        (STEP, ProofVerdict.MATCH, "moves the rewrite by that excess precision alone (4.4e-05 in"),
        (norm(2e-5), ProofVerdict.DIFFERS, "so no excess precision of XLA explains it"),
        (None, ProofVerdict.DIFFERS, "4.4e-05, more than 4 times the rounding noise"),
    ],
)
def test_a_rewrite_in_16_bits_is_judged_as_it_is_written(
    rounded: StepRecord | None, verdict: ProofVerdict, says: str, folder: Path
) -> None:
    original = one_rank(folder, STEP)
    judgement = judge_with_floor(
        original,
        one_rank(folder, norm(4.4e-5)),
        lambda: original,
        as_written=lambda: None if rounded is None else one_rank(folder, rounded),
    )
    assert judgement.verdict is verdict, judgement.message
    assert says in judgement.message


def test_a_buffer_that_is_far_is_judged_by_the_noise(folder: Path) -> None:
    # The running mean behind a bias whose gradient is rounding, which Adam moves by a whole step.
    moved = WEIGHTS | {"mean": torch.tensor([1.0, 1.0])}
    for name, value in (("equal", 1.0), ("far", 1.1), ("near", 1.02)):
        save(moved | {"mean": torch.tensor([1.0, value])}, folder / f"mean_{name}.safetensors")

    def ended(name: str) -> dict[int, RankRecord]:
        (one,) = one_rank(folder, STEP).values()
        return {0: replace(one, final=folder / f"mean_{name}.safetensors")}

    original, ours = ended("equal"), ended("near")
    assert judge(original, ours).verdict is ProofVerdict.DIFFERS
    judgement = judge_with_floor(original, ours, lambda: ended("far"))
    assert judgement.verdict is ProofVerdict.MATCH
    assert [one.name for one in judgement.weights if one.gate is None] == ["mean"]
    assert "1 more final weight was not compared" in judgement.message
    (said,) = [
        note
        for note in notes(original, ours, 1, judgement.weights, judgement.floor)
        if note.startswith("mean: ")
    ]
    assert f"the original {differs('more than 0.01')}" in said
    # An original that is not far from itself: the difference stays.
    judgement = judge_with_floor(original, ours, lambda: original)
    assert judgement.verdict is ProofVerdict.DIFFERS


def test_nothing_is_judged_where_the_original_is_far_from_itself(folder: Path) -> None:
    original = one_rank(folder, STEP, STEP, STEP)
    again = one_rank(folder, norm(1e-4), norm(2e-2), norm(0))
    ours = one_rank(folder, norm(2e-4), norm(0.5), norm(0.5))
    judgement = judge(original, ours, noise_floor(original, again))
    assert judgement.verdict is ProofVerdict.MATCH
    assert judgement.message.startswith(
        f"match in 1 of 3 steps, {WITHIN} (1.0e-04 in losses and gradient norms, 0.0e+00 in weights); "
        f"from step 2 on the original {differs('2.0e-02')}"
    )
    assert judgement.message.endswith("final weights and printed numbers were not compared")
    assert judgement.partial
    assert judgement.weights == ()
    # What differs before that is found.
    ours = one_rank(folder, norm(5e-4), norm(0.5), norm(0.5))
    judgement = judge(original, ours, noise_floor(original, again))
    assert judgement.verdict is ProofVerdict.DIFFERS


def test_noise_from_the_first_step_on_is_a_verdict_of_its_own(folder: Path) -> None:
    original = one_rank(folder, STEP)
    floor = noise_floor(original, one_rank(folder, norm(0.1)))
    judgement = judge(original, one_rank(folder, norm(1e-3)), floor)
    assert judgement.verdict is ProofVerdict.NOISE
    beginning = "from step 1 on the original differs from itself by 1.0e-01"
    assert judgement.message.startswith(beginning)


def test_a_weight_that_is_far_from_itself_is_named_and_not_held_to_a_gate(folder: Path) -> None:
    save(WEIGHTS | {"bias": torch.tensor([1.0, 1.1])}, folder / "other.safetensors")
    original = one_rank(folder, STEP)
    again = {0: replace(original[0], final=folder / "other.safetensors")}
    judgement = judge(original, again, noise_floor(original, again))
    assert judgement.verdict is ProofVerdict.MATCH
    assert {weight.name: weight.gate for weight in judgement.weights} == {
        "weight": PARAMETER_GATE,
        "bias": None,
    }
    assert "0.0e+00 in weights" in judgement.message
    assert any(
        note.startswith(f"bias: the original {differs('more than 0.01')}")
        for note in notes(original, again, 1, judgement.weights, judgement.floor)
    )


# The weights of the first layer sum to zero, over inputs that are all near 30,000: of each sum so little is
# left that its rounding shows, on every CPU. The layer is frozen (an update would no longer cancel); the next
# one trains on what it gives.
DEEP = (
    (
        "        self.net1 = nn.Linear(10, 32)\n",
        "        self.net1 = nn.Conv2d(4, 32, 3, bias=False).requires_grad_(False)\n"
        "        self.net1.weight -= self.net1.weight.mean((1, 2, 3), keepdim=True)\n",
    ),
    ("        self.net2 = nn.Linear(32, 5)\n", "        self.net2 = nn.Linear(512, 4)\n"),
    ("    model = ToyModel()\n", "    torch.manual_seed(12)\n    model = ToyModel()\n"),
    (
        "        return self.net2(self.relu(self.net1(x)))\n",
        "        conv, weight, x = nn.functional.conv2d, self.net1.weight, x + 30000\n"
        "        return self.net2(conv(x, weight).flatten(1))\n",
    ),
    ("torch.randn(size, 10, generator", "torch.randn(size, 4, 6, 6, generator"),
    (
        "    labels = torch.relu(inputs) @ torch.randn(10, 5, generator=generator)\n",
        "    labels = torch.arange(size) % 4\n",
    ),
    ("nn.MSELoss()", "nn.CrossEntropyLoss()"),
    ("lr=0.05", "lr=0.01"),
    ("batch_size=16", "batch_size=2"),
    ("range(3)", "range(1)"),
    ("size=512", "size=8"),
)
# What another kernel does, written out (torch and XLA may well share one): each half of the channels is
# summed on its own.
IN_HALVES = (
    "conv(x, weight)",
    "(conv(x[:, :2], weight[:, :2]) + conv(x[:, 2:], weight[:, 2:]))",
)


@pytest.mark.long
def test_a_net_that_differs_from_itself_is_judged_by_its_floor(tmp_path: Path) -> None:
    before, after = tmp_path / "train.py", tmp_path / "train_xla.py"
    before.write_text(edited(BEFORE, *DEEP))
    after.write_text(edited(AFTER, *DEEP, IN_HALVES))
    said: list[str] = []
    proof = prove(
        before,
        after,
        replicas=2,
        settings=Settings(timeout=LIMIT),
        progress=lambda what, *_: said.append(what),
    )
    assert proof.floor is not None
    assert proof.floor.steps[-1].values > GRADIENT_GATE
    assert proof.verdict is ProofVerdict.MATCH, (proof.message, proof.floor, proof.steps)
    assert "running the original again" in said[-1]
    assert any(note.startswith(f"{WAS_RUN} twice") for note in proof.notes)
    assert proof_as_json(proof)["floor"]["steps"][0]["step"] == 1


FAULTS = {
    "other momentum": ("momentum=0.9", "momentum=0.8"),
    "no DDP": ("ddp_model = DDP(model, gradient_as_bucket_view=True)", "ddp_model = model"),
    "data not sharded": ("rank=rank)\n    loader", "rank=0)\n    loader"),
    "learning rate, a thousandth more": ("lr=0.01", "lr=0.01001"),
}


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[int, RankRecord], NoiseFloor]:
    """The deep net's original, run twice for all faults, and its floor."""
    runs = []
    for reordered in (False, True):
        place = tmp_path_factory.mktemp("original")
        (place / "train.py").write_text(edited(BEFORE, *DEEP))
        # Its number is the order of the sums (`record.noise.summation`): the same in every session.
        kept = place / f"records{int(reordered)}"
        kept.mkdir()
        recorded, _ = record_run(
            place / "train.py",
            side="original",
            replicas=2,
            folder=kept,
            settings=Settings(timeout=LIMIT),
            reordered=reordered,
        )
        runs.append(recorded)
    return runs[0], noise_floor(runs[0], runs[1])


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_such_a_net_is_found_all_the_same(
    fault: str, deep: tuple[dict[int, RankRecord], NoiseFloor], tmp_path: Path
) -> None:
    original, floor = deep
    script = tmp_path / "train_xla.py"
    script.write_text(edited(AFTER, *DEEP, FAULTS[fault]))
    recorded, _ = record_run(
        script, side="xla", replicas=2, folder=tmp_path, settings=Settings(timeout=LIMIT)
    )
    judgement = judge(original, recorded, floor)
    assert judgement.verdict is ProofVerdict.DIFFERS, judgement.message

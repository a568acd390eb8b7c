"""What is decided from what is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from migrate.assess.errors import AssessError
from migrate.assess.facts import ObservedRun
from migrate.assess.money import TrainingPlan
from migrate.check.manual_work import ManualWork
from migrate.fit.verdict import SliceResult
from tests.assess import sample_assessments as assessments
from tests.assess.sample_assessments import PLAN, assessment, code, todo, verdict


def test_the_money_is_what_the_figures_say() -> None:
    decision = assessment(verdict("v5e-8", 0.1)).decision
    today, (there,) = decision.today, decision.there
    assert today is not None
    # 100,000 steps of 0.41 s on 8 GPUs.
    assert today.hours == pytest.approx(11.3889, abs=1e-4)
    assert today.dollars == pytest.approx(today.hours * 8 * today.price.on_demand)
    # As many replicas as GPUs: as many steps, of 0.1 s at least, on 8 chips.
    assert there.steps == 100_000
    assert there.hours_least == pytest.approx(2.7778, abs=1e-4)
    assert there.hours_likely == pytest.approx(2.7778 / 0.4, abs=1e-3)
    assert there.price is not None
    assert there.dollars_least == pytest.approx(2.7778 * 8 * there.price.on_demand, abs=1e-3)
    # The port: setup and one place of a step.
    assert decision.hours == 16 + 2
    assert decision.dollars == 18 * 200
    assert decision.saved == pytest.approx(today.dollars - 2.7778 / 0.4 * 9.6, abs=1e-2)
    assert decision.break_even == -(-3600 // decision.saved)


def test_the_batch_grows_with_the_replicas_or_stays() -> None:
    one = replace(PLAN, gpus=1)
    (grows,) = assessment(verdict("v5e-8"), plan=one).decision.there
    (same,) = assessment(verdict("v5e-8"), plan=replace(one, batch="same")).decision.there
    assert (grows.steps, same.steps) == (12_500, 100_000)


def test_the_cheapest_slice_is_the_best() -> None:
    found = assessment(verdict("v5p-8", 0.09), verdict("v5e-8", 0.1), verdict("v6e-8", 0.02))
    assert [one.verdict.product.name for one in found.decision.there] == ["v6e-8", "v5e-8", "v5p-8"]


def test_the_batch_that_was_weighed_and_the_largest_are_told() -> None:
    (first, *_) = assessments.ALL["batch"]().decision.reasons
    assert first.endswith(" of HBM on each device, with -b 32 (-b 96, the largest that fits)")
    big = verdict(state="too big")
    smaller = SliceResult("-b 8, the largest that fits", (verdict(),))
    (reason,) = assessment(big, batch="-b 32", largest=(smaller,)).decision.reasons
    assert reason.endswith("; -b 8, the largest that fits")


@pytest.mark.parametrize(
    ("name", "state", "says"),
    [
        ("move", "move", "Run it on v5e-8, after 1 thing by hand: the port pays after "),
        ("spared", "depends", "give --engineer-hour"),
        ("no price", "depends", "tpu7x-8 costs: its price is not known"),
        ("kernels", "stay", "train.py:7:3: what to do"),
        ("dynamic", "stay", "12 of 12 steps compiled anew"),
        ("dear", "stay", "even at the bound"),
        ("nothing", "stay", "v5e-8: too big"),
        ("undetermined", "undetermined", "made no step"),
        ("timed out", "undetermined", "v5e-8: undetermined"),
    ],
)
def test_each_case_is_decided_and_says_why(name: str, state: str, says: str) -> None:
    decision = assessments.ALL[name]().decision
    assert decision.state == state
    assert says in "\n".join((decision.sentence, *decision.reasons, *decision.unsaid))


def test_dear_at_the_assumed_share_only_says_which_share_would_do() -> None:
    decision = assessment(verdict(seconds=0.7)).decision
    assert decision.state == "stay"
    assert "would have to reach 51%" in decision.reasons[0]


def test_too_few_runs_are_a_reason_to_stay() -> None:
    needed = assessment(verdict()).decision.break_even
    assert needed is not None
    assert assessment(verdict(), plan=replace(PLAN, runs=needed)).decision.state == "move"
    few = assessment(verdict(), plan=replace(PLAN, runs=needed - 1)).decision
    assert few.state == "stay"
    assert f"pays after {needed} runs" in few.reasons[0]
    open_ = assessment(verdict(), plan=replace(PLAN, runs=None)).decision
    assert open_.state == "depends"
    assert f"if more than {needed} runs are planned" in open_.sentence


def test_a_step_takes_at_least_the_host_s_part() -> None:
    """A tiny step is neither 900 million steps an hour nor a run of a second."""
    tiny = verdict("v5e-8", 4e-6)
    (assumed,) = assessment(tiny).decision.there
    assert assumed.steps_an_hour == pytest.approx(3600 / 0.002)
    assert assumed.hours_least == assumed.hours_likely == pytest.approx(100_000 * 0.002 / 3600)
    (measured,) = assessment(tiny, host=0.02).decision.there
    assert (measured.host.source, measured.steps_an_hour) == ("measured", pytest.approx(180_000))
    given = replace(PLAN, host_step_seconds=0.005)
    (said,) = assessment(tiny, host=0.02, plan=given).decision.there
    assert (said.host.source, said.steps_an_hour) == ("given", pytest.approx(720_000))
    # The device's part may be the longer one by the assumed share only.
    (both,) = assessment(verdict("v5e-8", 0.01), host=0.02).decision.there
    assert both.hours_least == pytest.approx(100_000 * 0.02 / 3600)
    assert both.hours_likely == pytest.approx(100_000 * 0.01 / 0.4 / 3600)


def test_what_would_turn_the_decision_is_said() -> None:
    moved = assessment(verdict("v5e-8", 0.1)).decision
    share, hours = moved.rests
    assert share.startswith("the assumed 40% of the bound (--share-of-bound): a run costs as much")
    turn = int(share.rpartition("is ")[2].partition("%")[0]) / 100
    at_turn = assessment(verdict("v5e-8", 0.1), plan=replace(PLAN, share=turn)).decision
    assert at_turn.there[0].dollars_likely == pytest.approx(at_turn.today.dollars, rel=0.05)
    assert "the assumed 18 hours of work (--hours): 20 runs pay for at most" in hours
    waiting = assessment(verdict("v5e-8", 4e-6), host=0.3).decision
    assert waiting.rests[0].startswith(
        "the host's part of a step (300 ms a step, measured on this machine's CPU; "
    )
    slow = assessment(verdict("v5e-8", 4e-6), host=3.0).decision
    # A host of this machine is no host of a TPU.
    assert slow.state == "undetermined"
    assert "even at the bound with 3 s a step, measured" in slow.reasons[0]
    assert "give --host-step-seconds" in slow.unsaid[0]
    said = replace(PLAN, host_step_seconds=3.0)
    assert assessment(verdict("v5e-8", 4e-6), host=3.0, plan=said).decision.state == "stay"
    dear = assessment(verdict("v5e-8", 30.0), host=40.0).decision
    assert dear.state == "stay"
    assert not assessment(left=code(todo(ManualWork.KERNELS))).decision.rests


def test_a_short_run_is_a_reason_to_stay() -> None:
    short = replace(PLAN, steps=200)
    assert "a run is short" in "".join(
        assessment(verdict(compiling=60.0), plan=short).decision.reasons
    )
    assert "short" not in "".join(assessment(verdict(compiling=60.0)).decision.reasons)
    # What other programs of this machine took from the compiler does not count.
    busy = replace(verdict(compiling=60.0), worked=2.0)
    assert "short" not in "".join(assessment(busy, plan=short).decision.reasons)


def test_an_import_under_a_condition_is_a_risk_only() -> None:
    decision = assessment(verdict(), left=code(todo(ManualWork.FRAMEWORK, always=False))).decision
    assert decision.state == "move" or decision.break_even is not None
    assert any("it matters where this import runs" in one for one in decision.risks)


def test_what_a_run_showed_is_a_risk() -> None:
    ran = ObservedRun(
        steps=12, compiled=3, reads=("train.py:9",), on_cpu=("aten::nonzero (train.py:8)",)
    )
    risks = "\n".join(assessment(verdict(), ran=ran).decision.risks)
    assert "each step waits for a value at train.py:9" in risks
    assert "aten::nonzero (train.py:8)" in risks


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (TrainingPlan(gpus=0), "--gpus 0"),
        (TrainingPlan(steps=-1), "--steps -1"),
        (TrainingPlan(runs=0), "--runs 0"),
        (TrainingPlan("h100", gpu_step_seconds=-0.1), "--gpu-step-seconds -0.1"),
        (TrainingPlan(gpu_step_seconds=0.1), "--gpu-step-seconds: the GPU is unknown"),
        (TrainingPlan(engineer_hour=-5.0), "--engineer-hour -5"),
        (TrainingPlan(engineer_hour=float("nan")), "--engineer-hour nan"),
        (TrainingPlan(share=0.0), "--share-of-bound 0"),
        (TrainingPlan(share=1.5), "--share-of-bound 1.5"),
    ],
)
def test_figures_that_cannot_be_meant_are_refused(plan: TrainingPlan, says: str) -> None:
    with pytest.raises(AssessError, match="^" + says):
        plan.require_sense()

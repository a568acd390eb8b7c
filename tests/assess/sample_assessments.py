"""Assessments made by hand: what the decision sees, without a compiler."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from migrate.assess.decide import decide
from migrate.assess.facts import AssessmentFacts, Code, Fitted, ObservedRun, Todo
from migrate.assess.hours import read_hours
from migrate.assess.money import TrainingPlan
from migrate.assess.pipeline import Assessment, AssessQuestion
from migrate.assess.prices import read_prices
from migrate.check.manual_work import ManualWork
from migrate.fit.lines import StepBound
from migrate.fit.products import product_named
from migrate.fit.verdict import FitVerdict, SliceResult, State

PLAN = TrainingPlan("h100", 8, 0.41, 100_000, 20, 200.0)


def todo(work: ManualWork = ManualWork.STEP, *, look: bool = False, always: bool = True) -> Todo:
    return Todo("train.py:7:3", "some-rule", "what to do", work, look, always)


def code(*left: Todo) -> Code:
    return Code(files=3, rewritten=1, edits=9, reached=2, todo=left, elsewhere=4)


def verdict(
    name: str = "v5e-8", seconds: float = 0.1, state: State = "fits", compiling: float = 30.0
) -> FitVerdict:
    product = product_named(name)
    bound = StepBound(seconds, seconds / 2, 0.0)
    room = int(product.generation.hbm)
    why = "" if state == "fits" else "the compiler says so"
    return FitVerdict(
        product,
        state,
        why,
        bound=bound,
        needed=room // 2,
        available=room,
        seconds=compiling,
        compiler="libtpu 0.0.42.1 for TPU v5 lite",
    )


def assessment(
    *verdicts: FitVerdict,
    plan: TrainingPlan = PLAN,
    left: Code | None = None,
    on_tpu: Code | None = None,
    ran: ObservedRun | None = None,
    why: str = "",
    batch: str = "",
    largest: tuple[SliceResult, ...] = (),
    host: float = 0.0,
) -> Assessment:
    prices, hours = read_prices(), read_hours()
    known = AssessmentFacts(
        Path("project"),
        Path("train.py"),
        ("--lr", "0.1"),
        left if left is not None else code(todo()),
        on_tpu or left or code(todo()),
        ran or ObservedRun(replicas=2, seconds=9.0, steps=12, compiled=2),
        Fitted(why, verdicts, ("a note",), batch, largest, host),
    )
    products = tuple(one.product for one in verdicts)
    question = AssessQuestion(
        known.project, known.script, known.args, products, 2, 300.0, 1800.0, plan, prices, hours
    )
    return Assessment(question, known, decide(known, plan, prices, hours))


ALL = {
    "move": lambda: assessment(
        verdict(), verdict("v6e-8", 0.06), verdict("v5p-8", 0.01, "too big")
    ),
    "batch": lambda: assessment(
        verdict(),
        batch="-b 32",
        largest=(SliceResult("-b 96, the largest that fits", (verdict(),)),),
    ),
    "spared": lambda: assessment(verdict(), plan=TrainingPlan("h100", 8, 0.41, 100_000)),
    "one of each": lambda: assessment(
        verdict(compiling=1e6),
        plan=replace(PLAN, steps=1, runs=1),
        left=Code(1, 1, 1, 1, (todo(), todo(look=True)), 1),
        ran=ObservedRun(replicas=1, seconds=1.0, steps=1, compiled=1),
    ),
    "no price": lambda: assessment(verdict("tpu7x-8")),
    "kernels": lambda: assessment(left=code(todo(ManualWork.KERNELS), todo()), why="not compiled"),
    "dynamic": lambda: assessment(
        verdict(),
        ran=ObservedRun(replicas=2, seconds=9.0, steps=12, compiled=12, late=1.0, changes=("a",)),
    ),
    "dear": lambda: assessment(verdict(seconds=3.0)),
    "nothing": lambda: assessment(verdict(state="too big"), verdict("v6e-8", state="refused")),
    "undetermined": lambda: assessment(why="made no step"),
    "timed out": lambda: assessment(verdict(state="undetermined")),
}

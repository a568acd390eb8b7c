"""Decide from the facts about a project and its runs, with reasons and risks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from migrate.assess.facts import BLOCKING, AssessmentFacts, EffortItem, Fitted
from migrate.assess.hours import Hours
from migrate.assess.money import (
    Host,
    There,
    Today,
    TrainingPlan,
    host_of,
    step_time,
    there_of,
    today_of,
)
from migrate.assess.prices import Prices
from migrate.assess.targets import TargetEffort, easier, efforts
from migrate.catalogue.target import Target
from migrate.counts import binary_size, many
from migrate.fit.verdict import FitVerdict

State = Literal["move", "stay", "depends", "undetermined"]
# Of a run; where compiling takes more of it, the run is short.
SHORT = 0.2
# More of the HBM leaves no room for what the runtime holds.
FULL = 0.9
_MOST = 3  # places that a sentence names


@dataclass(frozen=True)
class Decision:
    """The decision.

    Attributes:
        state: "move" to the TPU; "stay" on the GPU; it "depends" on what was not said; "undetermined".
        sentence: the decision in one sentence.
        reasons: why.
        rests: the assumptions that decide, each with the value at which the decision turns.
        risks: what may turn out otherwise.
        unsaid: what cannot be said, and what to give so that it can.
        best: the slice to run on, or None if there is none.
        host: the host's part of a step.
        there: what a run costs, by slice, the cheapest first.
        today: what it costs today, or None if that was not said.
        jobs: the work by hand, by kind.
        hours: all of it, setup included.
        dollars: cost of these hours, or None without a price of an hour.
        saved: dollars that a run on the best slice saves, by the assumed share, or None if it is not known.
        break_even: after how many runs the port pays, or None if that is not known, or never.
        targets: the work by hand for torch_xla and for torch_tpu.
        easier: the target that needs less of it, or None if both need the same.
    """

    state: State
    sentence: str
    reasons: tuple[str, ...]
    rests: tuple[str, ...]
    risks: tuple[str, ...]
    unsaid: tuple[str, ...]
    best: There | None
    host: Host
    there: tuple[There, ...]
    today: Today | None
    jobs: tuple[EffortItem, ...]
    hours: float
    dollars: float | None
    saved: float | None
    break_even: int | None
    targets: tuple[TargetEffort, ...]
    easier: Target | None


def decide(known: AssessmentFacts, plan: TrainingPlan, prices: Prices, hours: Hours) -> Decision:
    """Weigh it.

    Raises:
        AssessError: no price of the GPU is known.
    """
    today = today_of(plan, prices)
    host = host_of(plan, known.fitted.host_seconds)
    there = there_of(known.fitted.fitting, plan, prices, host)
    best = there[0] if there else None
    work = known.code.hours(hours)
    dollars = work * plan.engineer_hour if plan.engineer_hour is not None else None
    likely = best.dollars_likely if best else None
    saved = today.dollars - likely if today and likely is not None else None
    pays = math.ceil(dollars / saved) if saved and saved > 0 and dollars is not None else None
    break_even = max(1, pays) if pays is not None else None
    dear = tuple(_too_dear(plan, best, today, break_even))
    waits = bool(dear) and _host_decides(plan, best, today, dollars)
    staying = (*_staying(known, best), *(() if waits else dear))
    unsaid = tuple(_unsaid(known.fitted, plan, best, today, waits=waits))
    targets = efforts(known, hours)
    state, sentence = _weighed(known, plan, best, staying, break_even, waits=waits)
    reasons = staying or (dear if waits else tuple(_moving(known.fitted, best, today, saved)))
    return Decision(
        state,
        sentence,
        reasons,
        tuple(_rests(known, plan, best, today, saved, work)),
        tuple(_risks(known, plan, best)),
        unsaid,
        best,
        host,
        there,
        today,
        tuple(known.code.jobs(hours)),
        work,
        dollars,
        saved,
        break_even,
        targets,
        easier(targets),
    )


def _weighed(
    known: AssessmentFacts,
    plan: TrainingPlan,
    best: There | None,
    staying: tuple[str, ...],
    break_even: int | None,
    *,
    waits: bool,
) -> tuple[State, str]:
    if staying:
        return "stay", "Stay on the GPU."
    if waits and best is not None:
        return (
            "undetermined",
            f"Undetermined: the host's part of a step decides, {best.host.words}. The host of a TPU VM may "
            "need another time.",
        )
    if best is None:
        return "undetermined", "Undetermined: it is not known on which slice the step runs."
    where = f"on {best.verdict.product.name}"
    by_hand = len(known.code.by_hand)
    first = f", after {many(by_hand, 'thing')} by hand" if by_hand else ""
    if break_even is not None and plan.runs is not None:
        return "move", f"Run it {where}{first}: the port pays after {many(break_even, 'run')}."
    if break_even is not None:
        after = (
            f"if more than {many(break_even, 'run')} are planned"
            if break_even > 1
            else "from the first run"
        )
        return "depends", f"Run it {where}{first}, {after}."
    return "depends", f"It runs {where}{first}. Whether that pays is unknown (see below)."


def _staying(known: AssessmentFacts, best: There | None) -> Iterator[str]:
    """The reasons to stay, apart from what a run costs; any of them is enough."""
    for todo in known.code.blocking:
        only = (
            "" if known.code_on_tpu.blocking else " (for torch_xla; torch_tpu has no such obstacle)"
        )
        yield f"{todo.place}: {todo.message}{only}"
    if known.ran.dynamic:
        yield (
            f"shapes or values change from step to step: {known.ran.compiled} of "
            f"{many(known.ran.steps, 'step')} compiled anew, and each of them waits for the "
            f"compiler ({_some(known.ran.changes)})"
        )
    verdicts = known.fitted.verdicts
    if verdicts and all(verdict.state in ("too big", "refused") for verdict in verdicts):
        for verdict in verdicts:
            smaller = known.fitted.largest_on(verdict)
            yield _verdict(verdict) + f"; {smaller}" * bool(smaller)
    if best is None:
        return
    name = best.verdict.product.name
    if best.hours_likely is not None and (share := _compiling(best)) > SHORT:
        yield (
            f"a run is short: on {name} it takes {_hours(best.hours_likely)} by the assumed share of the "
            f"bound, and compiling its step took {_compiled_in(best):.0f} s here, {share:.0%} of that"
        )


def _too_dear(
    plan: TrainingPlan, best: There | None, today: Today | None, break_even: int | None
) -> Iterator[str]:
    """The reason to stay that is in what a run costs, if any."""
    if best is None or today is None:
        return
    if best.dollars_least is None or best.dollars_likely is None:
        return
    name = best.verdict.product.name
    if best.dollars_least >= today.dollars:
        host = f" with {best.host.words} on the host" if _waits_for_host(best, 1.0) else ""
        yield (
            f"the cheapest slice, {name}, costs ${best.dollars_least:,.2f} a run even at the bound{host}, "
            f"{plan.gpus} × {today.price.name} ${today.dollars:,.2f}"
        )
    elif best.dollars_likely >= today.dollars:
        needed = best.dollars_least / today.dollars
        yield (
            f"the cheapest slice, {name}, costs ${best.dollars_likely:,.2f} a run at {plan.share:.0%} of the "
            f"bound, {plan.gpus} × {today.price.name} ${today.dollars:,.2f}: it would have to reach "
            f"{needed:.0%}"
        )
    elif break_even is not None and plan.runs is not None and plan.runs < break_even:
        planned = f"{many(plan.runs, 'run')} {'is' if plan.runs == 1 else 'are'} planned"
        yield f"the port pays after {many(break_even, 'run')}, and {planned}"


def _host_decides(
    plan: TrainingPlan, best: There | None, today: Today | None, work: float | None
) -> bool:
    """Whether a run is too dear only by the host's part of a step, as it is on no host of a TPU.

    Args:
        plan: the plan.
        best: the cheapest slice.
        today: what a run costs today.
        work: dollars of the work by hand, if they are known.
    """
    if best is None or today is None or best.host.source == "given" or best.dollars_likely is None:
        return False
    if not _waits_for_host(best, plan.share) or best.hourly is None or best.steps is None:
        return False
    bound = best.verdict.bound
    assert bound is not None
    saved = today.dollars - best.hourly * best.steps * bound.seconds / plan.share / 3600
    return saved * plan.runs >= work if work is not None and plan.runs is not None else saved > 0


def _waits_for_host(best: There, share: float) -> bool:
    """Whether a step takes as long as its host's part, where the device reaches this share of the bound."""
    bound = best.verdict.bound
    return bound is not None and best.host.seconds > bound.seconds / share


def _rests(
    known: AssessmentFacts,
    plan: TrainingPlan,
    best: There | None,
    today: Today | None,
    saved: float | None,
    work: float,
) -> Iterator[str]:
    """The assumptions that the decision rests on, each with what would turn it."""
    if known.code.blocking or best is None or best.verdict.bound is None:
        return
    if today is not None and best.hourly and best.steps:
        # Seconds a step for the same dollars.
        most = 3600 * today.dollars / (best.hourly * best.steps)
        says = f"a run costs as much as today where a step takes {step_time(most)} there"
        if _waits_for_host(best, plan.share):
            yield f"the host's part of a step ({best.host.words}; --host-step-seconds): {says}"
        else:
            share = best.verdict.bound.seconds / most
            turn = f", which is {share:.0%} of the bound" if share <= 1 else ", less than the bound"
            yield f"the assumed {plan.share:.0%} of the bound (--share-of-bound): {says}{turn}"
    if saved is not None and saved > 0 and plan.engineer_hour and plan.runs is not None:
        most = saved * plan.runs / plan.engineer_hour
        yield (
            f"the assumed {work:g} hours of work (--hours): {many(plan.runs, 'run')} "
            f"{'pays' if plan.runs == 1 else 'pay'} for at most {most:,.1f}"
        )


def _compiling(best: There) -> float:
    """Seconds of compiling for one of running."""
    return _compiled_in(best) / (3600 * best.hours_likely) if best.hours_likely else 0.0


def _compiled_in(best: There) -> float:
    """Seconds of compiling; those that other programs of this machine took from it do not count."""
    seconds, worked = best.verdict.seconds, best.verdict.worked
    return min(seconds, worked) if worked else seconds


def _moving(
    fitted: Fitted, best: There | None, today: Today | None, saved: float | None
) -> Iterator[str]:
    if best is None:
        return
    verdict, largest = best.verdict, fitted.largest_on(best.verdict)
    yield (
        f"its step compiles for {verdict.product.name} and takes {binary_size(verdict.needed)} of "
        f"{binary_size(verdict.available)} of HBM on each device, with "
        f"{fitted.batch or 'the batch that its arguments say'}" + f" ({largest})" * bool(largest)
    )
    if saved is not None and today is not None and best.dollars_likely is not None:
        yield (
            f"a run costs ${best.dollars_likely:,.2f} there, by the assumed share of the bound, and "
            f"${today.dollars:,.2f} today"
        )


def _unsaid(
    fitted: Fitted, plan: TrainingPlan, best: There | None, today: Today | None, *, waits: bool
) -> Iterator[str]:
    if waits:
        yield (
            "how long the host of a TPU VM needs for its part of a step: time some steps there, and give "
            "--host-step-seconds"
        )
    if best is None:
        if fitted.why:
            yield f"on which slices it runs: {fitted.why}"
        yield from map(_verdict, fitted.verdicts)
    elif best.price is None:
        yield f"what {best.verdict.product.name} costs: its price is not known (--prices FILE)"
    if today is None:
        missing = [
            *(["--gpu"] * (not plan.gpu)),
            *(["--gpu-step-seconds"] * (plan.gpu_step_seconds is None)),
            *(["--steps"] * (plan.steps is None)),
        ]
        yield f"what a run costs today, and so whether a TPU is cheaper: give {', '.join(missing)}"
    if plan.engineer_hour is None:
        yield "after how many runs the port pays: give --engineer-hour"


def _risks(known: AssessmentFacts, plan: TrainingPlan, best: There | None) -> Iterator[str]:
    ran, code = known.ran, known.code
    if best is not None and plan.steps is not None:
        yield (
            f"real runs are assumed to reach {plan.share:.0%} of the bound (--share-of-bound); nothing was "
            "measured on a TPU"
        )
    for todo in code.by_hand:
        if todo.work in BLOCKING and not todo.always:
            yield f"{todo.place}: {todo.message}; it matters where this import runs"
    if ran.failed and not code.blocking:
        by_hand = many(len(code.by_hand), "place")
        first = f": mend the {by_hand} that are left by hand first" if code.by_hand else ""
        yield f"the short run on simulated replicas fails{first}"
    elif ran.why and not code.blocking:
        yield f"no short run on simulated replicas was seen: {ran.why}"
    if ran.reads:
        yield f"each step waits for a value at {_some(ran.reads)}"
    if ran.changes and not ran.dynamic:
        yield f"graphs were compiled again: {_some(ran.changes)}"
    if ran.on_cpu:
        yield f"operations that run on the CPU of the host: {_some(ran.on_cpu)}"
    if ran.parted:
        yield f"replicas run different graphs: {_some(ran.parted)}"
    if ran.unended:
        yield f"nothing ends the steps of {_some(ran.unended)}"
    for problem in code.unread:
        yield f"could not be rewritten: {problem}"
    if best is not None:
        verdict = best.verdict
        if verdict.needed > FULL * verdict.available:
            yield f"{verdict.needed / verdict.available:.0%} of the HBM of {verdict.product.name} is taken"
        if verdict.memory and verdict.memory.rematerialized:
            again = verdict.memory.rematerialized
            yield f"it fits because the compiler computes {many(again, 'value')} a second time"
    yield from (_verdict(other) for other in known.fitted.verdicts if not other.fits)


def _verdict(verdict: FitVerdict) -> str:
    place = f" ({verdict.where})" if verdict.where else ""
    return f"{verdict.product.name}: {verdict.state}: {verdict.why}{place}"


def _hours(hours: float) -> str:
    if hours >= 1:
        return f"{hours:,.1f} hours"
    return f"{hours * 60:.1f} minutes" if hours * 60 >= 1 else f"{hours * 3600:.1f} seconds"


def _some(texts: tuple[str, ...]) -> str:
    more = len(texts) - _MOST
    return "; ".join(texts[:_MOST]) + (f" and {more} more" if more > 0 else "")

"""Terminal view and JSON of `migrate assess`: the decision first, then its reasons."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from migrate.assess.decide import SHORT
from migrate.assess.facts import Code, EffortItem, ObservedRun, Todo
from migrate.assess.money import There
from migrate.assess.pipeline import Assessment
from migrate.assess.prices import Price
from migrate.counts import many
from migrate.report.text.quantities import shown_seconds, shown_share
from migrate.report.text.tables import plain_table

if TYPE_CHECKING:
    from rich.console import RenderableType

_PLACES = 6  # of a kind of work; the JSON has all
_COLORS = {"move": "bold green", "stay": "bold red"}


def assess_summary(assessment: Assessment) -> Iterator[RenderableType]:
    """Yield the decision with its reasons, then the work, the run, the slices, the money, what is assumed."""
    decision, known = assessment.decision, assessment.known
    color = _COLORS.get(decision.state, "bold yellow")
    yield f"[{color}]{escape(decision.sentence)}[/{color}]"
    yield from (f"  because {escape(entry)}" for entry in decision.reasons)
    yield from (f"  depends on {escape(entry)}" for entry in decision.rests)
    yield from (f"  unknown: {escape(entry)}" for entry in decision.unsaid)
    code = known.code
    yield (
        f"\n[bold]the code[/bold]: {code_sentence(code)}; the script runs "
        f"{share_of_files(code.reached, code.files)}. Manual work in these:"
    )
    yield _jobs(decision.jobs) if decision.jobs else "  none"
    yield f"  {work_sentence(assessment)}"
    yield from (f"  {escape(entry)}" for entry in target_lines(assessment))
    yield f"\n[bold]a short run[/bold]: {escape(ran_sentence(known.ran))}"
    yield from (f"  {escape(entry)}" for entry in ran_lines(known.ran))
    yield f"\n[bold]the step on slices[/bold]{escape(': ' + known.fitted.why) * bool(known.fitted.why)}"
    if known.fitted.verdicts:
        yield from _slices(assessment)
    yield from (f"  {escape(entry)}" for entry in batch_lines(assessment))
    yield from (f"  {escape(entry)}" for entry in money_lines(assessment))
    if decision.risks:
        yield "\n[bold]risks[/bold]"
        yield from (f"  {escape(entry)}" for entry in decision.risks)
    yield "\n[bold]assumed[/bold]"
    yield from (f"  {escape(entry)}" for entry in assumptions(assessment))


def _jobs(jobs: tuple[EffortItem, ...]) -> RenderableType:
    table = plain_table("hours", "places", "work", "where", fixed=("hours", "places"))
    for job in jobs:
        table.add_row(
            f"{job.hours:g}", str(len(job.todo)), job.work.words, escape(places_of(job, _PLACES))
        )
    return table


def places_of(job: EffortItem, most: int) -> str:
    """The first places of a kind of work."""
    places = [entry.place for entry in job.todo]
    more = len(places) - most
    return ", ".join(places[:most]) + (f" and {more} more" if more > 0 else "")


def work_sentence(assessment: Assessment) -> str:
    """Return the assumed effort of the port."""
    decision, code = assessment.decision, assessment.known.code
    looked = sum(entry.look for entry in code.todo)
    look = f" and {many(looked, 'place')} to look at" if looked else ""
    cost = f", ${decision.dollars:,.0f}" if decision.dollars is not None else ""
    more = (
        f"; {many(code.elsewhere, 'more finding')} in files that it does not run"
        if code.elsewhere
        else ""
    )
    return f"{_hours(decision.hours)}{cost}, setup{look} included{more}"


def target_lines(assessment: Assessment) -> Iterator[str]:
    """Yield the work by hand for each target, and which target needs less."""
    decision = assessment.decision
    for effort in decision.targets:
        code = effort.code
        looked = sum(entry.look for entry in code.todo)
        only = [entry.place for entry in effort.only]
        more = f" and {len(only) - _PLACES} more" if len(only) > _PLACES else ""
        yield (
            f"{effort.target}: {many(len(code.by_hand), 'place')} by hand, {many(looked, 'place')} to "
            f"look at, {many(code.edits, 'edit')} by `migrate rewrite`: {_hours(effort.hours)}"
            + f"; not for the other target: {', '.join(only[:_PLACES])}{more}" * bool(only)
            + "; keeps every run from a TPU" * bool(code.blocking)
        )
    less = (
        f"{decision.easier} needs less" if decision.easier else "both targets need about the same"
    )
    yield f"{less} by hand; the short run, the slices and the costs are of torch_xla"


def _hours(hours: float) -> str:
    return "1 hour" if hours == 1 else f"{hours:g} hours"


def code_sentence(code: Code) -> str:
    """Return the counts of files and edits of the rewrite."""
    files = many(code.files, "file")
    if not code.edits:
        return f"{files}, nothing in them is left to `migrate rewrite`"
    return (
        f"{files}, {many(code.edits, 'edit')} in {share_of_files(code.rewritten, code.files)} "
        f"{'is' if code.edits == 1 else 'are'} made by `migrate rewrite`"
    )


def share_of_files(some: int, files: int) -> str:
    """Say how many of the files."""
    if some < files:
        return f"{some} of them"
    return "it" if files == 1 else f"all {files}"


def ran_sentence(ran: ObservedRun) -> str:
    """Return one line about the short run."""
    if ran.why:
        return ran.why
    return (
        f"{many(ran.steps, 'training step')} of the first of {many(ran.replicas, 'simulated replica')} in "
        f"{ran.seconds:.0f} s, "
        f"{ran.compiled} of them compiled something"
    )


def ran_lines(ran: ObservedRun) -> Iterator[str]:
    """Yield the findings of the short run."""
    for what, lines in (
        ("compiled again", ran.changes),
        ("waits for a value at", ran.reads),
        ("runs on the CPU", ran.on_cpu),
        ("replicas diverge at", ran.parted),
        ("no step boundary in the loop at", ran.unended),
    ):
        yield from (f"{what}: {entry}" for entry in lines[:_PLACES])
    if not ran.why and not (ran.changes or ran.reads or ran.on_cpu):
        yield "after the first steps no recompilation; no read cuts a step, nothing runs on the CPU"


def _slices(assessment: Assessment) -> Iterator[RenderableType]:
    """Yield two tables, each of which fits into 80 columns: the step, and the cost of a run."""
    table = plain_table(
        *("slice", "verdict", "HBM", "shortest step", "by", "most steps per hour"),
        fixed=("slice", "HBM"),
    )
    costs = plain_table(
        *("slice", "run at best", "run, assumed", "cost at best", "cost, assumed", "spot, assumed"),
        fixed=("slice",),
    )
    money = {entry.verdict.product.name: entry for entry in assessment.decision.there}
    for entry in assessment.known.fitted.verdicts:
        color = "bold green" if entry.fits else "bold red"
        bound = entry.bound
        steps, *cells = money_row(money.get(entry.product.name))
        table.add_row(
            entry.product.name,
            f"[{color}]{entry.state}[/{color}]",
            shown_share(entry.needed / entry.available) if entry.needed and entry.available else "",
            shown_seconds(bound.seconds) if bound else "",
            bound.by if bound else "",
            steps,
        )
        if any(cells):
            costs.add_row(entry.product.name, *cells)
    yield table
    if costs.row_count:
        yield ""
        yield costs


def batch_lines(assessment: Assessment) -> Iterator[str]:
    """The largest batch of each slice, where it was looked for."""
    fitted = assessment.known.fitted
    for entry in fitted.verdicts:
        if largest := fitted.largest_on(entry):
            yield f"{entry.product.name}: {largest}; its step was weighed with {fitted.batch}"


def money_row(entry: There | None) -> list[str]:
    """Steps an hour, hours and dollars of a slice; empty where they are not known."""
    if entry is None:
        return [""] * 6
    return [
        f"{entry.steps_an_hour:,.0f}",
        *(shown_hours(hours) for hours in (entry.hours_least, entry.hours_likely)),
        *(
            dollars(cost)
            for cost in (entry.dollars_least, entry.dollars_likely, entry.dollars_spot)
        ),
    ]


def shown_hours(hours: float | None) -> str:
    """Return "12.3 h", "4.5 min" or "3 s"; empty if unknown."""
    if hours is None:
        return ""
    if hours >= 1:
        return f"{hours:,.1f} h"
    return f"{hours * 60:.1f} min" if hours * 60 >= 1 else f"{hours * 3600:.0f} s"


def dollars(cost: float | None) -> str:
    """Return "$1,234.50"; empty if unknown."""
    return "" if cost is None else f"${cost:,.2f}"


def money_lines(assessment: Assessment) -> Iterator[str]:
    """Yield the cost today, the saving per run, and the break-even."""
    decision, plan = assessment.decision, assessment.question.plan
    today = decision.today
    if today is not None:
        yield (
            f"today: {many(plan.steps or 0, 'step')} of {plan.gpu_step_seconds:g} s on {plan.gpus} × "
            f"{today.price.name}: {shown_hours(today.hours)}, {dollars(today.dollars)} a run"
        )
    if decision.saved is not None and decision.saved > 0 and decision.best is not None:
        name = decision.best.verdict.product.name
        yield f"a run on {name} saves {dollars(decision.saved)}, by the assumed share of the bound"
    if decision.break_even is not None and decision.dollars is not None:
        planned = (
            f"; {plan.runs:,} {'is' if plan.runs == 1 else 'are'} planned"
            if plan.runs is not None
            else ""
        )
        yield (
            f"break-even: the port, {dollars(decision.dollars)}, pays after "
            f"{many(decision.break_even, 'run')}{planned}"
        )


def assumptions(assessment: Assessment) -> Iterator[str]:
    """Yield the assumptions, each with its source and the option that changes it."""
    question, decision = assessment.question, assessment.decision
    plan = question.plan
    if decision.there:
        batch = (
            "each replica takes the batch that a GPU takes today, so a run has fewer steps on more devices"
            if plan.batch == "grows"
            else "the batch of all replicas together stays, and so do the steps of a run"
        )
        yield f"{batch} (--batch)"
    if decision.there and plan.steps is not None:
        yield (
            f"a run reaches {plan.share:.0%} of the bound (--share-of-bound); loading data, saving and "
            "evaluating are not in it"
        )
    if decision.there:
        yield (
            f"the host's part of a step (input, tracing, start of the program): {decision.host.words}; "
            "a step takes at least that (--host-step-seconds)"
        )
    if plan.gpu:
        taken, *others = question.prices.gpus_named(plan.gpu)
        for other in others:
            yield (
                f"--gpu {plan.gpu} is read as {taken.name}; {other.name} costs ${other.on_demand:g} "
                f"an hour (--gpu {other.name})"
            )
    used = {entry.price for entry in decision.there if entry.price is not None}
    if decision.today is not None:
        used.add(decision.today.price)
    yield from (price_sentence(entry) for entry in sorted(used, key=lambda entry: entry.name))
    if used:
        yield f"prices change: these are from {question.prices.file.name}; set your own with --prices FILE"
    free = question.prices.free
    if free is not None and decision.there:
        yield f"not counted: {free.name}: {free.says} ({free.source}, {free.read})"
    if decision.there and plan.steps is not None:
        yield (
            f"a run is called short if compiling its step takes more than {SHORT:.0%} of it; the limit is a "
            "choice of this tool, and compilation is timed on this machine"
        )
    hours = question.hours
    kinds = "".join(
        f"; to {job.work.words} {first:g} for the first place"
        + f", {further:g} for each further one" * (len(job.todo) > 1)
        for job in decision.jobs
        for first, further in [hours.kinds[job.work]]
    )
    yield (
        f"hours of work are assumptions in {hours.file.name}, not measurements: {hours.setup:g} for "
        f"the setup{kinds}; set your own with --hours FILE"
    )
    yield from assessment.known.fitted.notes


def price_sentence(price: Price) -> str:
    """A price with its source and date."""
    spot = f", spot ${price.spot:g}" if price.spot is not None else ""
    said = ", ".join(filter(None, (price.source, price.read))) or "no source"
    return f"{price.name}: ${price.on_demand:g} an hour{spot} ({said})"


def assess_as_json(assessment: Assessment) -> dict[str, Any]:
    """All of it, as report/schema/assess.json describes it."""
    question, known, decision = assessment.question, assessment.known, assessment.decision
    plan = question.plan
    return {
        "format": 1,
        "project": str(known.project),
        "script": str(known.script),
        "args": list(known.args),
        "decision": decision.state,
        "sentence": decision.sentence,
        "reasons": list(decision.reasons),
        "rests_on": list(decision.rests),
        "unsaid": list(decision.unsaid),
        "risks": list(decision.risks),
        "best": decision.best.verdict.product.name if decision.best else None,
        "break_even_runs": decision.break_even,
        "saved_dollars": decision.saved,
        "work": {
            "hours": decision.hours,
            "dollars": decision.dollars,
            "setup_hours": question.hours.setup,
            "files": known.code.files,
            "rewritten": known.code.rewritten,
            "edits": known.code.edits,
            "reached": known.code.reached,
            "elsewhere": known.code.elsewhere,
            "unread": list(known.code.unread),
            "kinds": [
                {"kind": job.work.value, "hours": job.hours, "places": len(job.todo)}
                for job in decision.jobs
            ],
            "todo": [_todo_as_json(entry) for entry in known.code.todo],
        },
        "targets": {
            "less_by_hand": decision.easier,
            "efforts": [
                {
                    "target": effort.target,
                    "hours": effort.hours,
                    "by_hand": len(effort.code.by_hand),
                    "look": sum(entry.look for entry in effort.code.todo),
                    "edits": effort.code.edits,
                    "blocked": bool(effort.code.blocking),
                    "only": [_todo_as_json(entry) for entry in effort.only],
                }
                for effort in decision.targets
            ],
        },
        "run": _ran_as_json(known.ran),
        "fit": {
            "why": known.fitted.why,
            "notes": list(known.fitted.notes),
            "slices": [
                {
                    "slice": entry.product.name,
                    "chips": entry.product.chips,
                    "devices": entry.product.devices,
                    "state": entry.state,
                    "why": entry.why,
                    "where": entry.where,
                    "hbm": {"needed": entry.needed, "available": entry.available},
                    "largest_batch": known.fitted.largest_on(entry) or None,
                    "bound_seconds": entry.bound.seconds if entry.bound else None,
                    "bound_by": entry.bound.by if entry.bound else None,
                    "compile_seconds": entry.seconds,
                    "compiler": entry.compiler,
                }
                for entry in known.fitted.verdicts
            ],
        },
        "money": {
            "gpu": plan.gpu,
            "gpus": plan.gpus,
            "gpu_step_seconds": plan.gpu_step_seconds,
            "steps": plan.steps,
            "runs": plan.runs,
            "engineer_hour": plan.engineer_hour,
            "share_of_bound": plan.share,
            "batch": plan.batch,
            "host_step_seconds": decision.host.seconds,
            "host_step_source": decision.host.source,
            "today": (
                {
                    "hours": decision.today.hours,
                    "dollars": decision.today.dollars,
                    "price": _price_as_json(decision.today.price),
                }
                if decision.today
                else None
            ),
            "slices": [_there_as_json(entry) for entry in decision.there],
        },
        "assumed": list(assumptions(assessment)),
    }


def _todo_as_json(entry: Todo) -> dict[str, Any]:
    return {
        "place": entry.place,
        "rule": entry.rule,
        "message": entry.message,
        "kind": entry.work.value,
        "look": entry.look,
        "always": entry.always,
    }


def _ran_as_json(ran: ObservedRun) -> dict[str, Any]:
    return {
        "why": ran.why,
        "replicas": ran.replicas,
        "seconds": ran.seconds,
        "steps": ran.steps,
        "compiled": ran.compiled,
        "dynamic": ran.dynamic,
        "changes": list(ran.changes),
        "reads": list(ran.reads),
        "on_cpu": list(ran.on_cpu),
        "parted": list(ran.parted),
        "unended": list(ran.unended),
    }


def _there_as_json(entry: There) -> dict[str, Any]:
    return {
        "slice": entry.verdict.product.name,
        "steps_an_hour": entry.steps_an_hour,
        "steps": entry.steps,
        "hours_least": entry.hours_least,
        "hours_assumed": entry.hours_likely,
        "dollars_least": entry.dollars_least,
        "dollars_assumed": entry.dollars_likely,
        "dollars_spot": entry.dollars_spot,
        "chip_price": _price_as_json(entry.price) if entry.price else None,
    }


def _price_as_json(price: Price) -> dict[str, Any]:
    return {
        "name": price.name,
        "on_demand": price.on_demand,
        "spot": price.spot,
        "source": price.source,
        "read": price.read,
    }

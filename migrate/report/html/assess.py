"""The page of `migrate assess`."""

from __future__ import annotations

from pathlib import Path

from migrate.assess.facts import EffortItem
from migrate.assess.pipeline import Assessment
from migrate.counts import many
from migrate.report.html.banner import Banner, State, sentence
from migrate.report.html.page import write_page
from migrate.report.html.plots import FIRST, SECOND, plot
from migrate.report.text.assess import (
    assumptions,
    batch_lines,
    code_sentence,
    dollars,
    money_lines,
    money_row,
    ran_lines,
    ran_sentence,
    share_of_files,
    target_lines,
    work_sentence,
)
from migrate.report.text.quantities import shown_seconds, shown_share

_VERDICTS: dict[str, tuple[State, str]] = {
    "move": ("fine", "Move to the TPU"),
    "stay": ("wrong", "Stay on the GPU"),
    "depends": ("open", "It depends"),
    "undetermined": ("open", "Undetermined"),
}


def write_assess_page(assessment: Assessment, path: Path) -> None:
    """Write the page of an assessment to `path`, replacing the file if it exists.

    Raises:
        PageError: the folder or a package is missing.
        OutputError: the disk refuses.
    """
    known, decision = assessment.known, assessment.decision
    money = {there.verdict.product.name: there for there in decision.there}
    write_page(
        "assess.html.j2",
        path,
        _banner(assessment),
        title=f"migrate assess {known.project} --script {known.script}",
        decision=decision,
        known=known,
        rows={
            verdict.product.name: money_row(money.get(verdict.product.name))
            for verdict in known.fitted.verdicts
        },
        batches=list(batch_lines(assessment)),
        costs=_costs(assessment),
        time=shown_seconds,
        share=shown_share,
        ran=ran_sentence(known.ran),
        ran_lines=list(ran_lines(known.ran)),
        work=work_sentence(assessment),
        targets=list(target_lines(assessment)),
        code=code_sentence(known.code),
        reached=share_of_files(known.code.reached, known.code.files),
        money=list(money_lines(assessment)),
        assumptions=list(assumptions(assessment)),
        grouped=_grouped,
    )


def _banner(assessment: Assessment) -> Banner:
    decision, script = assessment.decision, assessment.known.script
    state, verdict = _VERDICTS[decision.state]
    finding = decision.sentence
    if decision.state == "stay":  # the sentence says no more than the headline
        first, *others = decision.reasons
        more = f" {many(len(others), 'more reason')} below." if others else ""
        finding = sentence(first) + more
    elif decision.state == "undetermined":
        finding = sentence(finding.partition(": ")[2] or finding)
    return Banner(state, verdict, finding, _next_step(assessment, str(script)))


def _next_step(assessment: Assessment, script: str) -> str:
    decision, known = assessment.decision, assessment.known
    if decision.state == "undetermined" and decision.best is not None:
        return "Time some steps on the host of a TPU VM, and give --host-step-seconds."
    if decision.state == "undetermined":
        return "See below why no slice could be chosen, correct it, and run the command again."
    if decision.state == "stay":
        if known.code.blocking:
            return "Replace the named code, or keep the GPU. Nothing else has to be done."
        return "Nothing has to be done. Change an assumption with its option if yours is another."
    if decision.break_even is None:
        return "Add the options that are named below, and run the command again."
    prove = f"`migrate prove {script} --replicas 2`"
    if known.code.by_hand:
        return f"Do the work by hand that is listed below, then prove the rewrite: {prove}."
    return f"Prove the rewrite: {prove}."


def _grouped(job: EffortItem) -> list[tuple[str, list[str]]]:
    """Return the messages of a kind of work, each once, with the places that it is about."""
    places: dict[tuple[str, str], list[str]] = {}
    for todo in job.todo:
        places.setdefault((todo.rule, todo.message), []).append(todo.place)
    return [(message, where) for (_, message), where in places.items()]


def _costs(assessment: Assessment) -> str:
    """Plot what a run costs on each slice and today; "" where no cost is known."""
    decision = assessment.decision
    priced = [there for there in decision.there if there.dollars_likely is not None]
    if not priced:
        return ""
    names = [there.verdict.product.name for there in priced]
    likely = [there.dollars_likely or 0.0 for there in priced]
    least = [there.dollars_least or 0.0 for there in priced]
    today = decision.today
    description = "Dollars of a run, assumed: " + ", ".join(
        f"{name} {dollars(cost)}" for name, cost in zip(names, likely, strict=True)
    )
    if today is not None:
        description += f"; today, on {today.price.name}, {dollars(today.dollars)}"
    positions = list(range(len(priced)))[::-1]  # the cheapest on top
    with plot("dollars per run", "", f"{description}.", 1.1 + 0.45 * len(priced)) as drawing:
        axes = drawing.axes
        axes.barh(positions, likely, 0.55, color=FIRST, alpha=0.4, label="assumed")
        axes.barh(positions, least, 0.55, color=FIRST, label="at the lower bound")
        axes.set_yticks(positions, names)
        axes.grid(visible=False)
        if today is not None:
            axes.axvline(today.dollars, color=SECOND, label=f"today, {today.price.name}")
        axes.set_xlim(left=0)
    return drawing.svg

"""The page of `migrate assess`."""

from __future__ import annotations

from pathlib import Path

from migrate.assess.found import Job
from migrate.assess.money import There
from migrate.assess.story import Assessment
from migrate.report.html.page import write_page
from migrate.report.html.plots import BLUE, RED, plot
from migrate.report.text.assess import (
    assumptions,
    batch_lines,
    code_sentence,
    money_lines,
    money_row,
    ran_lines,
    ran_sentence,
    work_sentence,
)
from migrate.report.text.quantities import shown_seconds, shown_share


def write_assess_page(found: Assessment, path: Path) -> None:
    """Write the page of an assessment to `path`; what is there is replaced.

    Raises:
        PageError: the folder or a package is missing.
        OutputError: the disk refuses.
    """
    money = {one.verdict.product.name: one for one in found.decision.there}
    write_page(
        "assess.html.j2",
        path,
        title=f"migrate assess {found.known.project} --script {found.known.script}",
        found=found,
        decision=found.decision,
        known=found.known,
        rows={
            one.product.name: money_row(money.get(one.product.name))
            for one in found.known.fitted.verdicts
        },
        batches=list(batch_lines(found)),
        costs=_costs(found),
        time=shown_seconds,
        share=shown_share,
        ran=ran_sentence(found.known.ran),
        shown=list(ran_lines(found.known.ran)),
        work=work_sentence(found),
        code=code_sentence(found.known.code),
        money=list(money_lines(found)),
        assumed=list(assumptions(found)),
        grouped=_grouped,
    )


def _grouped(job: Job) -> list[tuple[str, str, list[str]]]:
    """The rule, what it says and where, of the places of a kind of work; what says the same once."""
    found: dict[tuple[str, str], list[str]] = {}
    for one in job.todo:
        found.setdefault((one.rule, one.message), []).append(one.place)
    return [(rule, message, places) for (rule, message), places in found.items()]


def _costs(found: Assessment) -> str:
    """Plot what a run costs there, at best and assumed, and what it costs today; "" where it is not known."""
    known = [one for one in found.decision.there if one.dollars_likely is not None]
    if not known:
        return ""
    today = found.decision.today

    def at(one: There) -> tuple[float, float]:
        return one.dollars_least or 0.0, one.dollars_likely or 0.0

    with plot("slice", "dollars a run") as drawn:
        places = range(len(known))
        drawn.axes.bar(
            places, [at(one)[1] for one in known], 0.5, color=BLUE, alpha=0.35, label="assumed"
        )
        drawn.axes.bar(places, [at(one)[0] for one in known], 0.5, color=BLUE, label="at best")
        drawn.axes.set_xticks(list(places), [one.verdict.product.name for one in known])
        if today is not None:
            drawn.axes.axhline(today.dollars, color=RED, label=f"today, {today.price.name}")
        drawn.axes.set_ylim(bottom=0)
    return drawn.svg

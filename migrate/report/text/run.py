"""What `migrate run` shows of the graphs that were compiled and executed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from migrate.report.text.quantities import shown_bytes
from migrate.report.text.tables import plain_table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from migrate.observe.report import Divergence, Line, Observed

SHOWN = 12  # rows of a table; all are in the JSON and on the page


def run_summary(report: Observed) -> Iterator[RenderableType]:
    """Yield the steps, what interrupts them, what was compiled again, and what did not run on XLA."""
    if not report.steps:
        yield "[bold red]nothing was executed on XLA[/bold red]"
        return
    yield _loops(report)
    if report.unended:
        yield (
            "\n[bold red]optimizer steps that nothing ends[/bold red]: their graph grows until memory or "
            "the compiler gives up; put the loop's body in `with torch_xla.step():`"
        )
        yield _unended(report)
    if report.untrained:
        yield (
            "\n[bold red]optimizers that train nothing[/bold red]: their parameters never got a gradient; "
            "make an optimizer after the model was moved to the device"
        )
        yield _untrained(report)
    if report.reads:
        yield "\n[bold]graphs executed outside of a sync[/bold]: Python waited for a value"
        yield _reads(report)
    if report.recompilations:
        yield "\n[bold]compiled again[/bold]: what the graph has that the one before it had not"
        yield _recompilations(report)
    if report.fallbacks:
        yield "\n[bold]not lowered to XLA[/bold]: ran on the CPU, with a transfer there and back"
        yield _fallbacks(report)
    if report.divergences:
        yield "\n[bold red]replicas execute other graphs[/bold red]: on a TPU they may wait for each other"
        yield _divergences(report.divergences)
    if pending := [one for one in report.alone if one.pending]:
        yield (
            "\n[bold yellow]replicas execute other graphs after a read[/bold yellow]: not known whether they "
            "wait for each other on a TPU. A read runs what its value needs: a collective before it may be "
            "pending still, in one graph with these. torch_xla.sync() in all replicas after the collective "
            "decides it"
        )
        yield _divergences(pending)
    if certain := [one for one in report.alone if not one.pending]:
        yield (
            "\n[bold]replicas execute other graphs, with no collective in them[/bold]: nothing waits on a "
            "TPU; each shape costs a compilation, so pad the shards to one length where it matters"
        )
        yield _divergences(certain)
    yield ""
    yield from _totals(report)


def _loops(report: Observed) -> RenderableType:
    cuts = ["cut by simulation"] if report.simulated else []
    table = plain_table(
        *(
            "steps end at",
            "",
            "steps",
            "warm-up",
            "compiled",
            "in",
            "a steady step",
            "graphs a step",
        ),
        *cuts,
    )
    for loop in report.loops:
        table.add_row(
            escape(str(loop.line)),
            f"[dim]{escape(loop.line.text)}[/dim]",
            str(loop.steps),
            str(loop.warm_up),
            str(loop.compiles),
            f"{loop.compile_seconds:.2f} s",
            "none yet" if loop.steady_seconds is None else f"{loop.steady_seconds * 1e3:.1f} ms",
            f"{loop.executions:.3g}",
            *([f"{loop.cuts:.3g}"] if cuts else []),
        )
    return table


def _unended(report: Observed) -> RenderableType:
    table = plain_table("steps in one graph", "ranks", "line", "")
    for one in report.unended:
        table.add_row(str(one.steps), _ranks(one.ranks, report.ranks), *_cells(one.line))
    return table


def _untrained(report: Observed) -> RenderableType:
    table = plain_table("optimizer", "parameters", "steps", "ranks", "line", "")
    for one in report.untrained:
        ranks = _ranks(one.ranks, report.ranks)
        counts = (str(one.parameters), str(one.steps))
        table.add_row(escape(one.name), *counts, ranks, *_cells(one.line))
    return table


def _reads(report: Observed) -> RenderableType:
    table = plain_table("times", "a step", "ranks", "line", "")
    for read in report.reads[:SHOWN]:
        table.add_row(
            str(read.count),
            f"{read.per_step:.2g}",
            _ranks(read.ranks, report.ranks),
            *_cells(read.line),
        )
    return table


def _recompilations(report: Observed) -> RenderableType:
    table = plain_table("step", "ranks", "line", "what changed")
    for one in report.recompilations[:SHOWN]:
        table.add_row(
            str(one.step),
            _ranks(one.ranks, report.ranks),
            _cells(one.line)[0],
            escape("\n".join(one.changes)),
        )
    if len(report.recompilations) > SHOWN:
        table.add_row("…", "", f"{len(report.recompilations)} in all", "")
    return table


def _fallbacks(report: Observed) -> RenderableType:
    table = plain_table("op", "times", "line", "")
    for one in report.fallbacks[:SHOWN]:
        lines: Sequence[Line | None] = one.lines or [None]
        table.add_row(one.op, str(one.count), *_cells(lines[0]))
        for line in lines[1:]:
            table.add_row("", "or", *_cells(line))
    return table


def _divergences(divergences: Sequence[Divergence]) -> RenderableType:
    table = plain_table("step", "rank", "line", "rank", "line", "what differs")
    for one in divergences:
        here, there = (str(line) if line else "nothing more" for line in one.lines)
        table.add_row(
            str(one.step),
            *(str(one.ranks[0]), escape(here), str(one.ranks[1]), escape(there)),
            escape("\n".join(one.changes)),
        )
    return table


def _totals(report: Observed) -> Iterator[str]:
    first = [step for step in report.steps if step.rank == report.steps[0].rank]
    sent = sum(step.sent for step in first)
    received = sum(step.received for step in first)
    memory = max((step.memory for step in first if step.memory), default=None)
    said = (
        f"rank {first[0].rank}: {shown_bytes(sent)} to the device, {shown_bytes(received)} from it"
        f"{' (with those of the simulated collectives)' if report.simulated else ''}; "
    )
    if memory:
        said += f"{shown_bytes(memory[0])} of device memory, {shown_bytes(memory[1])} at most"
    else:
        said += "device memory: only a TPU counts it"
    yield said
    if report.simulated:
        yield (
            "simulated replicas: times are of this machine's CPU, and graphs are cut at the collectives, "
            "which a TPU has inside of one graph"
        )


def _cells(line: Line | None) -> tuple[str, str]:
    if line is None:
        return "[dim]no line of the script[/dim]", ""
    return escape(str(line)), f"[dim]{escape(line.text)}[/dim]"


def _ranks(ranks: Sequence[int], of: int) -> str:
    return "all" if len(ranks) == of else ", ".join(map(str, ranks))


def run_as_json(report: Observed) -> dict[str, Any]:
    """Return the report as plain values; of the graphs their hashes, not their nodes."""
    value = dataclasses.asdict(report)
    for step in value["steps"]:
        for execution in step["executions"]:
            del execution["nodes"]
    return value

"""Terminal view and JSON of `migrate run`: compiled and executed graphs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from migrate.counts import many
from migrate.observe.divergences import alone_words, divergence_remedy
from migrate.report.text.quantities import shown_bytes
from migrate.report.text.tables import plain_table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from migrate.observe.report import Divergence, Observed, ObservedLine, Untrained

SHOWN = 12  # rows of a table; all are in the JSON and on the page


def run_summary(report: Observed) -> Iterator[RenderableType]:
    """Yield the steps, what interrupts them, what was compiled again, and what did not run on XLA."""
    if not report.steps:
        yield "[bold red]nothing ran on XLA[/bold red]"
        return
    yield _loops(report)
    yield from _legend(report)
    yield from _verdict_on_compilations(report)
    if report.unended:
        yield (
            "\n[bold red]optimizer steps without a step boundary[/bold red]: their graph grows until memory "
            "or the compiler gives up; put the body of the loop in `with torch_xla.step():`"
        )
        yield _unended(report)
    yield from untrained_lines(report.untrained, report.ranks)
    if report.reads:
        yield "\n[bold]graphs run between syncs[/bold]: Python waited for a value"
        yield _reads(report)
    if report.recompilations:
        yield (
            "\n[bold]compiled again[/bold]: how each graph differs from the most similar one that ran at the "
            "same place before"
        )
        yield _recompilations(report)
    if report.fallbacks:
        yield "\n[bold]not lowered to XLA[/bold]: ran on the CPU, with transfers in both directions"
        yield _fallbacks(report)
    if report.divergences:
        yield "\n[bold red]replicas run different graphs[/bold red]: on a TPU they may wait forever"
        yield _divergences(report.divergences)
        yield f"To do: {divergence_remedy(report.divergences[0].changes)}"
    if pending := [entry for entry in report.alone if entry.pending]:
        yield (
            "\n[bold yellow]replicas run different graphs after a read[/bold yellow]: it is unknown whether "
            "they wait for each other on a TPU. A read runs only what its value needs, so a collective "
            "before it may still be pending. Call torch_xla.sync() on all replicas after the collective"
        )
        yield _divergences(pending)
    if certain := [entry for entry in report.alone if not entry.pending]:
        yield (
            "\n[bold]replicas run different graphs without collectives[/bold]: "
            f"{alone_words(report.simulated)}. "
            "Each shape costs a compilation; pad the shards to one length if that matters"
        )
        yield _divergences(certain)
    yield ""
    yield from _totals(report)


def _loops(report: Observed) -> RenderableType:
    cuts = ["cut by\nsimulation"] if report.simulated else []
    numbers = (
        *("syncs", "optimizer\nsteps", "warm-up", "compiled", "in"),
        *("steady\nsync", "graphs\nper sync", *cuts),
    )
    table = plain_table("sync", "", *numbers, fixed=numbers)
    for loop in report.loops:
        table.add_row(
            escape(str(loop.line)),
            f"[dim]{escape(loop.line.text)}[/dim]",
            str(loop.steps),
            str(loop.optimizer_steps),
            str(loop.warm_up),
            str(loop.compiles),
            f"{loop.compile_seconds:.2f} s",
            "none yet" if loop.steady_seconds is None else f"{loop.steady_seconds * 1e3:.1f} ms",
            f"{loop.executions:.3g}",
            *([f"{loop.cuts:.3g}"] if cuts else []),
        )
    return table


def _legend(report: Observed) -> Iterator[str]:
    """Yield what the columns of the loops count, as far as it is not plain."""
    if any(loop.executions > 1 for loop in report.loops):
        yield (
            "[dim]graphs per sync: the average. 1 is the step; more run what is pending when a step begins, "
            "at a rendezvous, or for a read[/dim]"
        )
    if any(loop.cuts for loop in report.loops):
        yield (
            "[dim]cut by simulation: further graphs, because simulated replicas end a graph at each "
            "collective[/dim]"
        )
    if report.recompilations:
        yield (
            f"[dim]compiled: all graphs that rank {report.steps[0].rank} compiled. compiled again: the part "
            "of them at a line where another graph had run before[/dim]"
        )


def _verdict_on_compilations(report: Observed) -> Iterator[str]:
    """Yield whether compiling came to an end, which decides how fast a longer run is."""
    again = report.recompilations
    if not again:
        return
    last, of = report.last_recompilation, report.syncs
    count = f"{many(len(again), 'graph')} compiled again, the last at sync {last} of {of}"
    if report.is_still_compiling:
        yield (
            f"\n[bold yellow]still compiling[/bold yellow]: {count}. A longer run shows whether it ends"
            f"{'; each shape costs a compilation: pad batches, or use drop_last=True' * report.shapes_change}"
        )
    else:
        yield f"\n[bold]compiling has ended[/bold]: {count}; nothing was compiled again after it"


def _unended(report: Observed) -> RenderableType:
    table = plain_table("steps in one graph", "ranks", "line", "", fixed=("ranks",))
    for entry in report.unended:
        table.add_row(
            str(entry.steps), shown_ranks(entry.ranks, report.ranks), *line_cells(entry.line)
        )
    return table


def untrained_lines(optimizers: Sequence[Untrained], of: int) -> Iterator[RenderableType]:
    """Yield what is said of optimizers that train nothing; nothing without such.

    Args:
        optimizers: the optimizers.
        of: number of ranks of the run.
    """
    if not optimizers:
        return
    yield (
        "\n[bold red]optimizers that train nothing[/bold red]: their parameters never got a gradient; "
        "make an optimizer after the model was moved to the device"
    )
    table = plain_table("optimizer", "parameters", "steps", "ranks", "line", "")
    for entry in optimizers:
        ranks = shown_ranks(entry.ranks, of)
        counts = (str(entry.parameters), str(entry.steps))
        table.add_row(escape(entry.name), *counts, ranks, *line_cells(entry.line))
    yield table


def _reads(report: Observed) -> RenderableType:
    table = plain_table("times", "per sync", "ranks", "line", "", fixed=("times", "per sync"))
    for read in report.reads[:SHOWN]:
        table.add_row(
            str(read.count),
            f"{read.per_step:.2g}",
            shown_ranks(read.ranks, report.ranks),
            *line_cells(read.line),
        )
    return table


def _recompilations(report: Observed) -> RenderableType:
    table = plain_table("sync", "ranks", "line", "what changed")
    for entry in report.recompilations[:SHOWN]:
        table.add_row(
            str(entry.step),
            shown_ranks(entry.ranks, report.ranks),
            line_cells(entry.line)[0],
            escape("\n".join(entry.changes)),
        )
    if len(report.recompilations) > SHOWN:
        table.add_row("…", "", f"{len(report.recompilations)} in all", "")
    return table


def _fallbacks(report: Observed) -> RenderableType:
    table = plain_table("op", "times", "line", "")
    for entry in report.fallbacks[:SHOWN]:
        lines: Sequence[ObservedLine | None] = entry.lines or [None]
        cells = line_cells(lines[0])
        if not entry.lines and entry.op.endswith("_backward"):
            cells = ("[dim]the backward pass[/dim]", "")
        table.add_row(entry.op, str(entry.count), *cells)
        for line in lines[1:]:
            table.add_row("", "or", *line_cells(line))
    return table


def _divergences(divergences: Sequence[Divergence]) -> RenderableType:
    table = plain_table("sync", "rank", "line", "rank", "line", "what differs")
    for entry in divergences:
        here, there = (str(line) if line else "nothing more" for line in entry.lines)
        table.add_row(
            str(entry.step),
            *(str(entry.ranks[0]), escape(here), str(entry.ranks[1]), escape(there)),
            escape("\n".join(entry.changes)),
        )
    return table


def _totals(report: Observed) -> Iterator[str]:
    first = [step for step in report.steps if step.rank == report.steps[0].rank]
    sent = sum(step.sent for step in first)
    received = sum(step.received for step in first)
    memory = max((step.memory for step in first if step.memory), default=None)
    said = (
        f"rank {first[0].rank}: {shown_bytes(sent)} to the device, {shown_bytes(received)} from it"
        f"{' (simulated collectives included)' if report.simulated else ''}; "
    )
    if memory:
        said += f"{shown_bytes(memory[0])} of device memory, {shown_bytes(memory[1])} at most"
    else:
        said += "device memory: measured on a TPU only"
    yield said
    if report.simulated:
        yield (
            "simulated replicas: times are those of this CPU. Graphs are cut at collectives; on a TPU a "
            "collective is part of the graph"
        )


def line_cells(line: ObservedLine | None) -> tuple[str, str]:
    """Return the cells of a line: its location and its text."""
    if line is None:
        return "[dim]no line of the script[/dim]", ""
    return escape(str(line)), f"[dim]{escape(line.text)}[/dim]"


def shown_ranks(ranks: Sequence[int], of: int) -> str:
    """Return the ranks in words: all, or their numbers."""
    return "all" if len(ranks) == of else ", ".join(map(str, ranks))


def run_as_json(report: Observed) -> dict[str, Any]:
    """Return the report as plain values; of the graphs their hashes, not their nodes."""
    value = dataclasses.asdict(report)
    for step in value["steps"]:
        for execution in step["executions"]:
            del execution["nodes"]
    return value

"""Terminal view and JSON of `migrate run --target torch_tpu`: ranks, compiled operators, shapes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from migrate.counts import many
from migrate.report.text.plain import plain_value
from migrate.report.text.run import SHOWN, line_cells, shown_ranks, untrained_lines
from migrate.report.text.tables import plain_table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from migrate.observe.eager.report import EagerReport, RankReport


def eager_summary(report: EagerReport) -> Iterator[RenderableType]:
    """Yield the ranks, what trains nothing, what was compiled, and what was simulated."""
    if not any(rank.operators for rank in report.ranks):
        yield "[bold red]nothing ran on torch_tpu[/bold red]"
        yield from _errors(report)
        return
    yield _ranks(report)
    if dropped := sum(rank.dropped for rank in report.ranks):
        yield f"torch_tpu did not record {many(dropped, 'operator')}: compilations may be missing"
    yield from _errors(report)
    yield from untrained_lines(report.untrained, len(report.ranks))
    for rank in report.unchanged:
        yield (
            f"\n[bold red]weights do not change[/bold red]: {many(rank.steps, 'optimizer step')} of rank "
            f"{rank.rank} changed none of {many(rank.parameters, 'parameter')} with gradients"
        )
    if report.new_shapes:
        yield "\n[bold]shapes that change[/bold]: each operator is compiled for each new shape"
        yield _new_shapes(report)
    if report.compiled:
        yield "\n[bold]compiled[/bold]: kernels that were new to a rank, by line"
        yield _compiled(report)
    if report.simulated:
        yield f"\n{escape(report.simulated)}"


def _ranks(report: EagerReport) -> RenderableType:
    table = plain_table(
        "rank",
        "steps",
        "warm-up",
        "steady\nstep",
        "loss: first",
        "last",
        "weights\nchanged",
        "compiled",
        "in",
        "ended",
    )
    for rank in report.ranks:
        table.add_row(
            "none" if rank.rank is None else str(rank.rank),
            str(rank.steps),
            str(rank.warm_up),
            "none yet" if rank.steady_seconds is None else f"{rank.steady_seconds * 1e3:.1f} ms",
            _loss(rank.first_loss),
            _loss(rank.last_loss),
            f"{rank.changed} of {rank.parameters}",
            str(rank.compilations),
            f"{rank.compile_seconds:.2f} s",
            "by an error" if rank.error else "well",
        )
    return table


def _errors(report: EagerReport) -> Iterator[str]:
    for rank in report.ranks:
        if rank.not_implemented:
            yield (
                f"\n[bold red]not implemented by torch_tpu[/bold red]: {escape(rank.not_implemented)} at "
                f"{_at(rank)}, rank {rank.rank}: compute it on the CPU, or replace it"
            )
        elif rank.error:
            what = f"rank {rank.rank} at {_at(rank)}: {escape(rank.error)}"
            yield f"\n[bold red]ended by an error[/bold red]: {what}"


def _at(rank: RankReport) -> str:
    return escape(str(rank.error_line)) if rank.error_line else "no line of the script"


def _new_shapes(report: EagerReport) -> RenderableType:
    table = plain_table("after step", "ranks", "line", "shape", "kernels")
    for entry in report.new_shapes[:SHOWN]:
        table.add_row(
            str(entry.step),
            shown_ranks(entry.ranks, len(report.ranks)),
            line_cells(entry.line)[0],
            escape(entry.shape),
            str(entry.kernels),
        )
    if len(report.new_shapes) > SHOWN:
        table.add_row("…", "", f"{len(report.new_shapes)} in all", "", "")
    return table


def _compiled(report: EagerReport) -> RenderableType:
    table = plain_table("kernels", "in", "line", "")
    for entry in report.compiled[:SHOWN]:
        line, text = line_cells(entry.line)
        line += " (backward)" if entry.backward else ""
        line += " (refused by XLA)" if entry.refused else ""
        table.add_row(str(entry.kernels), f"{entry.seconds:.2f} s", line, text)
    if len(report.compiled) > SHOWN:
        table.add_row("…", "", f"{len(report.compiled)} lines in all", "")
    return table


def _loss(value: float | None) -> str:
    return "none" if value is None else f"{value:.5g}"


def eager_as_json(report: EagerReport) -> Any:
    """Return the report as plain values; what is not finite becomes a string."""
    return plain_value(dataclasses.asdict(report))

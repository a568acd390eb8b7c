"""Terminal view and JSON of `migrate fit`: verdict, memory, exchanges, lower bound, waste."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from migrate.counts import binary_size, many
from migrate.fit.verdict import FitReport, FitVerdict, SliceResult
from migrate.report.text.quantities import shown_operations, shown_seconds, shown_share
from migrate.report.text.tables import plain_table

if TYPE_CHECKING:
    from rich.console import RenderableType

_LINES = 8  # rows; the JSON has all
# More than what the compiler says by so much lies in a larger chip: it has saved memory before it gave up.
_SPARED = 1.02
_COLORS = {"fits": "bold green", "undetermined": "bold yellow"}


def fit_summary(report: FitReport) -> Iterator[RenderableType]:
    """Yield the verdicts, and for each slice what its program holds and does."""
    what = "a step of training" if report.trains else "a program"
    yield f"[bold]{escape(report.target)}[/bold]: {what}, per device"
    yield from _verdicts(report.verdicts)
    for judged in report.verdicts:
        if judged.why:
            place = f" ({escape(judged.where)})" if judged.where else ""
            yield f"\n[bold]{judged.product.name}[/bold] {judged.state}: {escape(judged.why)}{place}"
            if judged.remedy:
                yield f"  {escape(judged.remedy)}"
    for judged in _told(report.verdicts):
        yield from _details(judged)
    if report.tried:
        yield "\n[bold]with changes[/bold]"
        yield _tried(report.tried)
    yield ""
    for note in report.notes:
        yield f"note: {escape(note)}"
    yield (
        "note: times are lower bounds from the peak of the chip, its HBM and its links; a real step takes "
        "longer. Nothing ran on a TPU."
    )


def _told(verdicts: tuple[FitVerdict, ...]) -> Iterator[FitVerdict]:
    """Yield the first slice of each generation; slices of one generation differ only in exchanges."""
    seen = set()
    for judged in verdicts:
        if judged.memory is not None and judged.product.generation.name not in seen:
            seen.add(judged.product.generation.name)
            yield judged


def _verdicts(verdicts: tuple[FitVerdict, ...]) -> Iterator[RenderableType]:
    """Yield two tables, each of which fits into 80 columns: the verdicts, and the compilations."""
    columns = ("slice", "devices", "verdict", "HBM", "of", "lower bound", "by", "exchanged")
    table = plain_table(*columns, fixed=("slice", "HBM", "of"))
    compiled = plain_table("slice", "compiled by", "in", fixed=("slice", "in"))
    for judged in verdicts:
        color = _COLORS.get(judged.state, "bold red")
        bound = judged.bound
        sent = sum(each.sent for each in judged.collectives)
        table.add_row(
            judged.product.name,
            str(judged.product.devices),
            f"[{color}]{judged.state}[/{color}]",
            binary_size(judged.needed) if judged.needed else "",
            f"{binary_size(judged.available)} ({shown_share(judged.needed / judged.available)})"
            if judged.needed
            else "",
            shown_seconds(bound.seconds) if bound else "",
            bound.by if bound else "",
            binary_size(sent) if bound else "",
        )
        spent = f"cached, {judged.cached}" if judged.cached else f"{judged.seconds:.0f} s"
        compiled.add_row(judged.product.name, escape(judged.compiler), spent)
    yield table
    yield ""
    yield compiled


def _details(judged: FitVerdict) -> Iterator[RenderableType]:
    memory = judged.memory
    assert memory is not None
    whose = f", as it lies in a {judged.explained_by}" if judged.explained_by else ""
    kinds = ", ".join(f"{kind} {binary_size(size)}" for kind, size in judged.by_kind())
    yield f"\n[bold]{judged.product.name}: what is in HBM at the peak[/bold]{whose}: {kinds}"
    padding = (
        f"; {binary_size(memory.padding)} of it is padding of tiles"
        if memory.padding > 0.01 * memory.peak
        else ""
    )
    at = f", reached at {escape(memory.where)}" if memory.where else ""
    gaps = (
        f"; {binary_size(judged.gaps)} more for the gaps between arrays"
        if judged.gaps > 0.01 * memory.peak
        else ""
    )
    beside = (
        f"; {binary_size(judged.beside)} for other programs of the step" if judged.beside else ""
    )
    yield f"  peak {binary_size(memory.peak)}{at}{padding}{gaps}{beside}"
    yield from (f"  {line}" for line in saving_lines(judged))
    table = plain_table("size", "array", "what", "line", fixed=("size",))
    for held in memory.largest:
        kind, name = judged.name_of(held)
        table.add_row(
            binary_size(held.bytes),
            str(held.array),
            escape(f"{kind} {name}".rstrip()),
            escape(held.source),
        )
    yield table
    if judged.collectives:
        yield f"\n[bold]{judged.product.name}: exchanged between devices[/bold]"
        table = plain_table("", "times", "bytes", "among", "at least", "", "line", fixed=("bytes",))
        for each in judged.exchanges:
            how = "overlapped" if each.overlapped else "exposed"
            cells = (str(each.times), binary_size(each.bytes), str(each.group))
            table.add_row(each.kind, *cells, shown_seconds(each.seconds), how, escape(each.source))
        yield table
    if judged.bound:
        flops = sum(line.flops for line in judged.lines)
        moved = sum(line.bytes for line in judged.lines)
        intensity = f", {flops / moved:.0f} operations a byte" if moved else ""
        yield (
            f"\n[bold]{judged.product.name}: the step takes at least "
            f"{shown_seconds(judged.bound.seconds)}[/bold] "
            f"(MXU {shown_seconds(judged.bound.compute)}, HBM {shown_seconds(judged.bound.memory)}, "
            f"ICI {shown_seconds(judged.bound.links)}{intensity})"
        )
        table = plain_table("share", "operations", "bytes", "line", fixed=("operations", "bytes"))
        for line in judged.lines[:_LINES]:
            table.add_row(
                shown_share(line.share),
                shown_operations(line.flops),
                binary_size(line.bytes),
                escape(line.source) or "(no line known)",
            )
        yield table
    for loop in judged.counted_once:
        yield f"  the loop at {escape(loop)} is counted once: its number of iterations depends on values"
    if judged.waste:
        yield f"\n[bold]{judged.product.name}: could be cheaper[/bold]"
        table = plain_table("share", "", "what", "what to do", "line", fixed=("share",))
        for waste in judged.waste[:_LINES]:
            table.add_row(
                f"{waste.share:.0%}" if waste.share else "",
                waste.kind,
                escape(waste.what),
                escape(waste.remedy),
                escape(waste.source) or "(no line known)",
            )
        yield table


def saving_lines(judged: FitVerdict) -> Iterator[str]:
    """Yield how the compiler saves memory, and the cost of that."""
    memory = judged.memory
    if memory is None:
        return
    if memory.rematerialized:
        products = sum(line.flops for line in judged.lines)
        share = f", {judged.again / products:.1%} of the step's products" if products else ""
        yield (
            f"the compiler computes {many(memory.rematerialized, 'value')} a second time to save memory: "
            f"{shown_operations(judged.again)} operations{share}, included in the figures below"
        )
    if judged.state == "too big" and memory.peak > _SPARED * judged.needed:
        yield (f"{binary_size(judged.needed)} remain after the compiler tried to save memory")


def _tried(tried: tuple[SliceResult, ...]) -> RenderableType:
    table = plain_table("", "slice", "verdict", "HBM", "lower bound", "by")
    for judged in tried:
        if not judged.verdicts:
            table.add_row(escape(judged.what))
        for verdict in judged.verdicts:
            color = _COLORS.get(verdict.state, "bold red")
            table.add_row(
                escape(judged.what),
                verdict.product.name,
                f"[{color}]{verdict.state}[/{color}]",
                binary_size(verdict.needed) if verdict.needed else "",
                shown_seconds(verdict.bound.seconds) if verdict.bound else "",
                verdict.bound.by if verdict.bound else "",
            )
    return table


def fit_as_json(report: FitReport) -> dict[str, Any]:
    """All of it; sizes in bytes, times in seconds, per device."""
    return {
        "target": report.target,
        "trains": report.trains,
        "fits": report.fine,
        "notes": list(report.notes),
        "slices": [_verdict_as_json(judged) for judged in report.verdicts],
        "tried": [
            {"what": judged.what, "slices": [_verdict_as_json(v) for v in judged.verdicts]}
            for judged in report.tried
        ],
        "seconds": report.seconds,
    }


def _verdict_as_json(judged: FitVerdict) -> dict[str, Any]:
    return {
        "slice": judged.product.name,
        "topology": judged.product.topology,
        "devices": judged.product.devices,
        "chips": judged.product.chips,
        "state": judged.state,
        "why": judged.why,
        "where": judged.where,
        "remedy": judged.remedy,
        "hbm": {"needed": judged.needed, "available": judged.available, **_memory_as_json(judged)},
        "collectives": [
            {
                "kind": each.kind,
                "times": each.times,
                "bytes": each.bytes,
                "group": each.group,
                "overlapped": each.overlapped,
                "seconds": each.seconds,
                "source": each.source,
            }
            for each in judged.exchanges
        ],
        "lower_bound": _bound_as_json(judged),
        "flops": judged.flops or None,
        "lines": [
            {"source": line.source, "share": line.share, "flops": line.flops, "bytes": line.bytes}
            for line in judged.lines
        ],
        "waste": [
            {
                "kind": waste.kind,
                "source": waste.source,
                "what": waste.what,
                "remedy": waste.remedy,
                "share": waste.share,
            }
            for waste in judged.waste
        ],
        "counted_once": list(judged.counted_once),
        "compiler": judged.compiler,
        "compile_seconds": judged.seconds,
        "cached": judged.cached,
    }


def _memory_as_json(judged: FitVerdict) -> Mapping[str, Any]:
    if judged.memory is None:
        return {}
    memory = judged.memory
    return {
        "at_peak": memory.peak,
        "peak_at": memory.where,
        "padding": memory.padding,
        "gaps": judged.gaps,
        "beside": judged.beside,
        "compiler_peak": judged.stats.peak if judged.stats else None,
        "rematerialized": memory.rematerialized,
        "rematerialized_flops": judged.again,
        "explained_by": judged.explained_by or judged.product.name,
        "by_kind": dict(judged.by_kind()),
        "largest": [
            {
                "bytes": held.bytes,
                "array": str(held.array),
                "kind": judged.name_of(held)[0],
                "name": judged.name_of(held)[1],
                "source": held.source,
            }
            for held in memory.largest
        ],
        "curve": [list(point) for point in memory.thinned],
    }


def _bound_as_json(judged: FitVerdict) -> Mapping[str, Any] | None:
    if judged.bound is None:
        return None
    bound = judged.bound
    return {
        "seconds": bound.seconds,
        "by": bound.by,
        "mxu": bound.compute,
        "hbm": bound.memory,
        "ici": bound.links,
    }

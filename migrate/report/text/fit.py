"""What `migrate fit` shows of each slice: verdict, memory, exchanges, the bound of a step, waste."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from migrate.counts import many
from migrate.fit.verdict import FitReport, Tried, Verdict
from migrate.report.text.quantities import shown_bytes, shown_seconds, shown_share
from migrate.report.text.tables import plain_table

if TYPE_CHECKING:
    from rich.console import RenderableType

_LINES = 8  # rows; the JSON has all
_SMALL = 2**30 // 10  # below it GiB say little
# More than what the compiler says by so much lies in a larger chip: it has saved memory before it gave up.
_SPARED = 1.02
_COLOURS = {"fits": "bold green", "undetermined": "bold yellow"}


def fit_summary(report: FitReport) -> Iterator[RenderableType]:
    """Yield the verdicts, and for each slice what its program holds and does."""
    what = "a step of training" if report.trains else "a program"
    yield f"[bold]{escape(report.target)}[/bold]: {what}, per device"
    yield from _verdicts(report.verdicts)
    for one in report.verdicts:
        if one.why:
            place = f" ({escape(one.where)})" if one.where else ""
            yield f"\n[bold]{one.product.name}[/bold] {one.state}: {escape(one.why)}{place}"
            if one.remedy:
                yield f"  {escape(one.remedy)}"
    for one in _told(report.verdicts):
        yield from _details(one)
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


def _told(verdicts: tuple[Verdict, ...]) -> Iterator[Verdict]:
    """One of each generation: two slices of it differ in what they exchange."""
    seen = set()
    for one in verdicts:
        if one.memory is not None and one.product.generation.name not in seen:
            seen.add(one.product.generation.name)
            yield one


def _verdicts(verdicts: tuple[Verdict, ...]) -> Iterator[RenderableType]:
    """Yield two tables, each of which fits into 80 columns: the verdicts, and the compilations."""
    columns = ("slice", "devices", "verdict", "HBM", "of", "lower bound", "by", "exchanged")
    table = plain_table(*columns, fixed=("slice", "HBM", "of"))
    compiled = plain_table("slice", "compiled by", "in", fixed=("slice", "in"))
    for one in verdicts:
        colour = _COLOURS.get(one.state, "bold red")
        bound = one.bound
        sent = sum(each.sent for each in one.collectives)
        table.add_row(
            one.product.name,
            str(one.product.devices),
            f"[{colour}]{one.state}[/{colour}]",
            _gib(one.needed) if one.needed else "",
            f"{_gib(one.available)} ({shown_share(one.needed / one.available)})"
            if one.needed
            else "",
            shown_seconds(bound.seconds) if bound else "",
            bound.by if bound else "",
            shown_bytes(sent) if bound else "",
        )
        spent = f"cached, {one.cached}" if one.cached else f"{one.seconds:.0f} s"
        compiled.add_row(one.product.name, escape(one.compiler), spent)
    yield table
    yield ""
    yield compiled


def _details(one: Verdict) -> Iterator[RenderableType]:
    memory = one.memory
    assert memory is not None
    whose = f", as it lies in a {one.explained_by}" if one.explained_by else ""
    kinds = ", ".join(f"{kind} {shown_bytes(size)}" for kind, size in one.by_kind())
    yield f"\n[bold]{one.product.name}: what is in HBM at the peak[/bold]{whose}: {kinds}"
    padding = (
        f"; {shown_bytes(memory.padding)} of it is padding of tiles"
        if memory.padding > 0.01 * memory.peak
        else ""
    )
    at = f" at {escape(memory.where)}" if memory.where else ""
    gaps = (
        f"; {shown_bytes(one.gaps)} more for the gaps between arrays"
        if one.gaps > 0.01 * memory.peak
        else ""
    )
    beside = f"; {shown_bytes(one.beside)} for other programs of the step" if one.beside else ""
    yield f"  {shown_bytes(memory.peak)}{at}{padding}{gaps}{beside}"
    yield from (f"  {line}" for line in saving_lines(one))
    table = plain_table("size", "array", "what", "line", fixed=("size",))
    for held in memory.largest:
        kind, name = one.name_of(held)
        table.add_row(
            shown_bytes(held.bytes), str(held.array), escape(f"{kind} {name}"), escape(held.source)
        )
    yield table
    if one.collectives:
        yield f"\n[bold]{one.product.name}: exchanged between devices[/bold]"
        table = plain_table("", "times", "bytes", "among", "at least", "", "line", fixed=("bytes",))
        for each in one.exchanges:
            how = "overlapped" if each.overlapped else "exposed"
            cells = (str(each.times), shown_bytes(each.bytes), str(each.group))
            table.add_row(each.kind, *cells, shown_seconds(each.seconds), how, escape(each.source))
        yield table
    if one.bound:
        flops = sum(line.flops for line in one.lines)
        moved = sum(line.bytes for line in one.lines)
        intensity = f", {flops / moved:.0f} operations a byte" if moved else ""
        yield (
            f"\n[bold]{one.product.name}: the step takes at least {shown_seconds(one.bound.seconds)}[/bold] "
            f"(MXU {shown_seconds(one.bound.compute)}, HBM {shown_seconds(one.bound.memory)}, "
            f"ICI {shown_seconds(one.bound.links)}{intensity})"
        )
        table = plain_table("share", "operations", "bytes", "line", fixed=("operations", "bytes"))
        for line in one.lines[:_LINES]:
            table.add_row(
                shown_share(line.share),
                f"{line.flops / 1e9:.2f} G",
                shown_bytes(line.bytes),
                escape(line.source) or "(no line known)",
            )
        yield table
    for loop in one.counted_once:
        yield f"  the loop at {escape(loop)} is counted once: its number of iterations depends on values"
    if one.waste:
        yield f"\n[bold]{one.product.name}: could be cheaper[/bold]"
        table = plain_table("share", "", "what", "what to do", "line", fixed=("share",))
        for waste in one.waste[:_LINES]:
            table.add_row(
                f"{waste.share:.0%}" if waste.share else "",
                waste.kind,
                escape(waste.what),
                escape(waste.remedy),
                escape(waste.source),
            )
        yield table


def saving_lines(one: Verdict) -> Iterator[str]:
    """What the compiler does to save memory, and what that costs."""
    memory = one.memory
    if memory is None:
        return
    if memory.rematerialised:
        products = sum(line.flops for line in one.lines)
        share = f", {one.again / products:.1%} of the step's products" if products else ""
        yield (
            f"the compiler computes {many(memory.rematerialised, 'value')} a second time to save memory: "
            f"{one.again / 1e9:.2f} G operations{share}, included in the figures below"
        )
    if one.state == "too big" and memory.peak > _SPARED * one.needed:
        yield (f"{shown_bytes(one.needed)} remain after the compiler tried to save memory")


def _tried(tried: tuple[Tried, ...]) -> RenderableType:
    table = plain_table("", "slice", "verdict", "HBM", "lower bound", "by")
    for one in tried:
        if not one.verdicts:
            table.add_row(escape(one.what))
        for verdict in one.verdicts:
            colour = _COLOURS.get(verdict.state, "bold red")
            table.add_row(
                escape(one.what),
                verdict.product.name,
                f"[{colour}]{verdict.state}[/{colour}]",
                _gib(verdict.needed) if verdict.needed else "",
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
        "slices": [_verdict_as_json(one) for one in report.verdicts],
        "tried": [
            {"what": one.what, "slices": [_verdict_as_json(v) for v in one.verdicts]}
            for one in report.tried
        ],
        "seconds": report.seconds,
    }


def _verdict_as_json(one: Verdict) -> dict[str, Any]:
    return {
        "slice": one.product.name,
        "topology": one.product.topology,
        "devices": one.product.devices,
        "chips": one.product.chips,
        "state": one.state,
        "why": one.why,
        "where": one.where,
        "remedy": one.remedy,
        "hbm": {"needed": one.needed, "available": one.available, **_memory_as_json(one)},
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
            for each in one.exchanges
        ],
        "lower_bound": _bound_as_json(one),
        "flops": one.flops or None,
        "lines": [
            {"source": line.source, "share": line.share, "flops": line.flops, "bytes": line.bytes}
            for line in one.lines
        ],
        "waste": [
            {
                "kind": waste.kind,
                "source": waste.source,
                "what": waste.what,
                "remedy": waste.remedy,
                "share": waste.share,
            }
            for waste in one.waste
        ],
        "counted_once": list(one.counted_once),
        "compiler": one.compiler,
        "compile_seconds": one.seconds,
        "cached": one.cached,
    }


def _memory_as_json(one: Verdict) -> Mapping[str, Any]:
    if one.memory is None:
        return {}
    memory = one.memory
    return {
        "at_peak": memory.peak,
        "peak_at": memory.where,
        "padding": memory.padding,
        "gaps": one.gaps,
        "beside": one.beside,
        "compiler_peak": one.stats.peak if one.stats else None,
        "rematerialised": memory.rematerialised,
        "rematerialised_flops": one.again,
        "explained_by": one.explained_by or one.product.name,
        "by_kind": dict(one.by_kind()),
        "largest": [
            {
                "bytes": held.bytes,
                "array": str(held.array),
                "kind": one.name_of(held)[0],
                "name": one.name_of(held)[1],
                "source": held.source,
            }
            for held in memory.largest
        ],
        "curve": [list(point) for point in memory.thinned],
    }


def _bound_as_json(one: Verdict) -> Mapping[str, Any] | None:
    if one.bound is None:
        return None
    bound = one.bound
    return {
        "seconds": bound.seconds,
        "by": bound.by,
        "mxu": bound.compute,
        "hbm": bound.memory,
        "ici": bound.links,
    }


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= _SMALL else f"{size / 2**20:.1f} MiB"

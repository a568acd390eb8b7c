"""The page of `migrate run`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from migrate.counts import many
from migrate.observe.divergences import alone_words, divergence_remedy
from migrate.observe.places import ExecutionCause
from migrate.observe.records import Interval
from migrate.observe.report import Divergence, Observed
from migrate.report.html.banner import Banner, joined, sentence
from migrate.report.html.page import write_page
from migrate.report.html.plots import FINE, FIRST, OPEN, QUIET, SECOND, WRONG, bars
from migrate.report.text.quantities import shown_bytes, shown_seconds

# Steps of a longer run that are shown: the first, which compile, and the last.
_FIRST, _LAST = 60, 60
_COLORS = {
    ExecutionCause.SYNC: FIRST,
    ExecutionCause.READ: WRONG,
    ExecutionCause.COMPILED: SECOND,
    ExecutionCause.RENDEZVOUS: FINE,
    ExecutionCause.WRAPPING: OPEN,
    ExecutionCause.SIMULATION: QUIET,
}


@dataclass(frozen=True)
class ReplicaRow:
    """The totals of one replica."""

    rank: int
    steps: int
    compiles: int
    compile_seconds: float
    steady_seconds: float | None
    executions: int
    sent: int
    received: int
    peak_memory: int | None


def write_run_page(report: Observed, script: Path, path: Path) -> None:
    """Write the page of the run of `script` to `path`, replacing the file if it exists.

    Raises:
        PageError: the folder or a package is missing.
        OutputError: the disk refuses.
    """
    ranks = sorted({step.rank for step in report.steps})
    shown = {rank: _shown(report.steps, rank) for rank in ranks}
    first = shown[report.steps[0].rank] if report.steps else []
    write_page(
        "run.html.j2",
        path,
        _banner(report, script),
        title=f"migrate run {script}",
        report=report,
        pending=[divergence for divergence in report.alone if divergence.pending],
        harmless=[divergence for divergence in report.alone if not divergence.pending],
        unlike=alone_words(report.simulated),
        rank=first[0].rank if first else 0,
        steps=[step for steps in _side_by_side(shown) for step in steps],
        all_shown=all(
            len(shown[rank]) == sum(_is_step(step, rank) for step in report.steps) for rank in ranks
        ),
        replicas=[_replica(report.steps, rank) for rank in ranks],
        times=_times(first) if first else "",
        graphs=_graphs(first) if first else "",
        bytes=shown_bytes,
        seconds=shown_seconds,
    )


def _banner(report: Observed, script: Path) -> Banner:
    problems = list(_problems(report, script))
    if problems:
        verdict, finding, next_step = problems[0]
        if more := len(problems) - 1:
            finding += (
                f" {many(more, 'more problem')}: {joined([p[0].lower() for p in problems[1:]])}."
            )
        return Banner("wrong", verdict, finding, next_step)
    steps = sum(loop.optimizer_steps for loop in report.loops)
    count = many(steps, "optimizer step") if steps else many(report.syncs, "sync")
    ran = f"{count} on {_replicas(report)}"
    slow = list(_slow(report))
    if slow:
        finding = f"{ran}; {joined([finding for finding, _ in slow])}."
        return Banner("open", "Runs on XLA, with slow steps", sentence(finding), slow[0][1])
    later = f" after sync {report.last_recompilation}" if report.recompilations else ""
    finding = f"{ran}; no step waited for a value, ran on the CPU, or was compiled again{later}."
    next_step = (
        f"Prove that it trains as the original does: `migrate prove ORIGINAL --rewritten {script}`."
    )
    return Banner("fine", "Runs on XLA", finding, next_step)


def _problems(report: Observed, script: Path) -> Iterator[tuple[str, str, str]]:
    """Yield each problem that stops or breaks training: its headline, what was found, what to do."""
    if not report.steps:
        yield (
            "Nothing ran on XLA",
            f"`{script}` used no XLA device.",
            f"If it is a CUDA script, rewrite it for the run: `migrate run {script} --rewrite`.",
        )
    if report.divergences:
        yield (
            "Replicas run different graphs",
            f"{_where(report.divergences[0])} On a TPU, they may wait for each other forever.",
            sentence(divergence_remedy(report.divergences[0].changes)),
        )
    if report.unended:
        most = max(unended.steps for unended in report.unended)
        yield (
            "No step boundary",
            f"{many(most, 'optimizer step')} are in one graph, which grows until memory or the compiler "
            "gives up.",
            "Put the body of the training loop in `with torch_xla.step():`.",
        )
    if report.untrained:
        names = joined(sorted({optimizer.name for optimizer in report.untrained}))
        yield (
            "An optimizer trains nothing",
            f"The parameters of {names} never got a gradient.",
            "Create the optimizer after the model is moved to the device.",
        )


def _slow(report: Observed) -> Iterator[tuple[str, str]]:
    """Yield what slows training down: what was found, and what to do."""
    if any(divergence.pending for divergence in report.alone):
        yield (
            "replicas run different graphs after a read",
            "Call `torch_xla.sync()` on all replicas after the collective, and run it again.",
        )
    if report.reads:
        yield (
            f"Python waited for values at {many(len(report.reads), 'line')}",
            "Read values less often: keep them on the device, and read them once in many steps.",
        )
    if report.is_still_compiling:
        count = len(report.recompilations)
        yield (
            f"{many(count, 'graph')} {'was' if count == 1 else 'were'} compiled again, the last at sync "
            f"{report.last_recompilation} of {report.syncs}",
            (
                "Give every step the same shapes: pad the batches, or use `drop_last=True`."
                if report.shapes_change
                else "See below what changed in each graph: a longer run shows whether it ends."
            ),
        )
    if report.fallbacks:
        operators = joined([f"`{fallback.op}`" for fallback in report.fallbacks[:3]])
        yield (
            f"{operators} ran on the CPU",
            "Replace the operators that XLA does not support; the lines are below.",
        )
    if any(not divergence.pending for divergence in report.alone):
        yield (
            "replicas run different graphs without a collective",
            "Pad the shards to one length, so that each shape is compiled once.",
        )


def _where(divergence: Divergence) -> str:
    ran = [
        f"replica {rank} runs " + (f"`{line}`" if line else "nothing more")
        for rank, line in zip(divergence.ranks, divergence.lines, strict=True)
    ]
    return f"At sync {divergence.step}, {joined(ran)}."


def _replicas(report: Observed) -> str:
    return many(report.ranks, "simulated replica" if report.simulated else "replica")


def _is_step(step: Interval, rank: int) -> bool:
    return step.rank == rank and step.line is not None


def _shown(steps: Sequence[Interval], rank: int) -> list[Interval]:
    """Return the steps of a replica that the page shows."""
    own = [step for step in steps if _is_step(step, rank)]
    return own if len(own) <= _FIRST + _LAST else [*own[:_FIRST], *own[-_LAST:]]


def _side_by_side(shown: dict[int, list[Interval]]) -> Iterator[list[Interval]]:
    """Yield the steps of all replicas that have the same position."""
    for position in range(max(map(len, shown.values()), default=0)):
        yield [steps[position] for steps in shown.values() if position < len(steps)]


def _replica(steps: Sequence[Interval], rank: int) -> ReplicaRow:
    every = [step for step in steps if step.rank == rank]
    own = [step for step in every if step.line is not None]
    steady = [step.seconds for step in own if not step.compiles]
    return ReplicaRow(
        rank=rank,
        steps=len(own),
        compiles=sum(step.compiles for step in every),
        compile_seconds=sum(step.compile_seconds for step in every),
        steady_seconds=median(steady) if steady else None,
        executions=sum(len(step.executions) for step in every),
        sent=sum(step.sent for step in every),
        received=sum(step.received for step in every),
        peak_memory=max((step.memory[1] for step in every if step.memory), default=None),
    )


def _times(steps: Sequence[Interval]) -> str:
    """Plot the wall time of each step in seconds, with compilation apart."""
    compiling = [step.compile_seconds for step in steps]
    rest = [max(0.0, step.seconds - step.compile_seconds) for step in steps]
    parts = (("compilation", compiling, SECOND), ("everything else", rest, FIRST))
    slowest = max(steps, key=lambda step: step.seconds)
    description = (
        f"Seconds from sync to sync; the slowest is {slowest.number} with {slowest.seconds:.2f} s."
    )
    return bars([str(step.number) for step in steps], parts, "sync", "seconds", description)


def _graphs(steps: Sequence[Interval]) -> str:
    """Plot the number of graphs that each step ran, by what caused them."""
    parts = []
    for cause, color in _COLORS.items():
        counts = [
            float(sum(execution.cause is cause for execution in step.executions)) for step in steps
        ]
        if any(counts):
            parts.append((str(cause), counts, color))
    most = max(steps, key=lambda step: len(step.executions))
    count = len(most.executions)
    description = f"Graphs of each sync, by cause: at most {count}, at sync {most.number}."
    return bars([str(step.number) for step in steps], parts, "sync", "graphs", description)

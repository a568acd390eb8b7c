"""Combine the records of the ranks of a watched run on torch_tpu."""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from migrate.observe.eager.records import Compilation, EagerRecord, Failure, read
from migrate.observe.graph_dump import DumpFrame
from migrate.observe.report import LineOf, ObservedLine, Untrained, line_of, untrained_optimizers

_SHAPE = re.compile(r"(?P<type>\w+)\[(?P<sizes>[\d, ]*)\]")


@dataclass(frozen=True)
class RankReport:
    """Activity of a rank.

    Attributes:
        rank: the rank; None for a process without one.
        steps: number of optimizer steps.
        warm_up: number of steps with a compilation.
        steady_seconds: median time of the other steps; None if there are none.
        first_loss, last_loss: the first and the last loss; None if no loss was seen.
        parameters: number of parameters with gradients.
        changed: number of these whose values changed.
        compilations: number of kernels that were new.
        compile_seconds: their time together.
        operators: number of operators that ran on the device.
        dropped: number of operators that torch_tpu did not record.
        error: the error that ended it; "" if it ended by itself.
        error_line: the user's line of the error.
        not_implemented: operator that torch_tpu does not implement, if that was the error; else "".
    """

    rank: int | None
    steps: int
    warm_up: int
    steady_seconds: float | None
    first_loss: float | None
    last_loss: float | None
    parameters: int
    changed: int
    compilations: int
    compile_seconds: float
    operators: int
    dropped: int
    error: str = ""
    error_line: ObservedLine | None = None
    not_implemented: str = ""


@dataclass(frozen=True)
class CompiledLine:
    """Kernels of a line.

    Attributes:
        line: None where no code of the user's was running.
        backward: whether they belong to the backward pass that the line starts.
        kernels: their number, the most of a rank.
        seconds: time of a rank, the most.
        refused: whether XLA refused one.
    """

    line: ObservedLine | None
    backward: bool
    kernels: int
    seconds: float
    refused: bool = False


@dataclass(frozen=True)
class NewShape:
    """Kernels that were compiled in a later step because a tensor had another shape.

    Attributes:
        step: number of optimizer steps before it.
        line: the first line with the shape.
        shape: the shape, with the most similar one before it, as in "f32[16, 10] → f32[4, 10]".
        kernels: number of kernels that a rank compiled in this step.
        ranks: the ranks.
    """

    step: int
    line: ObservedLine | None
    shape: str
    kernels: int
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class EagerReport:
    """Report of a run on torch_tpu.

    Attributes:
        ranks: the ranks.
        compiled: the lines whose operators were compiled.
        new_shapes: shapes that were new in a later step.
        untrained: optimizers whose parameters never got a gradient.
        simulated: what was simulated, and what that does not show; "" on a TPU.
    """

    ranks: tuple[RankReport, ...]
    compiled: tuple[CompiledLine, ...]
    new_shapes: tuple[NewShape, ...]
    untrained: tuple[Untrained, ...]
    simulated: str = ""

    @property
    def unchanged(self) -> tuple[RankReport, ...]:
        """Ranks whose optimizer steps changed no weight."""
        return tuple(rank for rank in self.ranks if rank.parameters and not rank.changed)

    @property
    def has_findings(self) -> bool:
        """Whether the run shows something that has to be mended."""
        failed = any(rank.error for rank in self.ranks)
        ran = any(rank.operators for rank in self.ranks)
        return bool(failed or not ran or self.untrained or self.unchanged)


def reported(
    folder: Path, names: Mapping[Path, str] | None = None, simulated: str = ""
) -> EagerReport:
    """Return the report of the run that wrote to `folder`.

    Args:
        folder: the folder passed to `run_script`.
        names: what to call files whose own name says nothing, such as a rewritten script.
        simulated: what was simulated, in words.
    """
    known = {str(path.resolve()): name for path, name in (names or {}).items()}
    of = functools.partial(line_of, known)
    records = list(read(folder))
    ranked = [record for record in records if record.rank is not None]
    # A process that only starts the ranks counts if it failed itself.
    shown = ranked or records
    return EagerReport(
        tuple(_rank(record, of) for record in shown),
        tuple(_compiled(shown, of)),
        tuple(_new_shapes(shown, of)),
        tuple(untrained_optimizers(folder, of)),
        simulated,
    )


def _rank(record: EagerRecord, of: LineOf) -> RankReport:
    failure = record.failure or Failure("", None)
    return RankReport(
        rank=record.rank,
        steps=record.steps,
        warm_up=len({entry.step for entry in record.compilations if entry.step < record.steps}),
        steady_seconds=median(record.seconds) if record.seconds else None,
        first_loss=record.first_loss,
        last_loss=record.last_loss,
        parameters=record.parameters,
        changed=record.changed,
        compilations=len(record.compilations),
        compile_seconds=sum(entry.seconds for entry in record.compilations),
        operators=record.operators,
        dropped=record.dropped,
        error=failure.text,
        error_line=of(failure.line) if failure.line else None,
        not_implemented=failure.op,
    )


def _compiled(records: Iterable[EagerRecord], of: LineOf) -> Iterator[CompiledLine]:
    most: dict[tuple[ObservedLine | None, bool], CompiledLine] = {}
    for record in records:
        by_line: dict[tuple[ObservedLine | None, bool], list[Compilation]] = defaultdict(list)
        for entry in record.compilations:
            line = of(entry.line) if entry.line else None
            by_line[line, entry.backward].append(entry)
        for (line, backward), entries in by_line.items():
            here = CompiledLine(
                line,
                backward,
                len(entries),
                sum(entry.seconds for entry in entries),
                any(entry.failed for entry in entries),
            )
            known = most.get((line, backward))
            if known is None or here.kernels > known.kernels:
                most[line, backward] = here
    yield from sorted(most.values(), key=lambda line: -line.kernels)


def _new_shapes(records: Iterable[EagerRecord], of: LineOf) -> Iterator[NewShape]:
    """Yield the first new shape of each later step; equal findings of several ranks are joined."""
    ranks: dict[tuple[int, ObservedLine | None, str], list[tuple[int, int]]] = defaultdict(list)
    for record in records:
        known: dict[str, None] = {}
        lines: dict[DumpFrame | None, list[list[str]]] = defaultdict(list)
        by_step: dict[int, list[Compilation]] = defaultdict(list)
        for entry in record.compilations:
            by_step[entry.step].append(entry)
        for step, entries in sorted(by_step.items()):
            first = None
            for entry in entries:
                shapes = [match[0] for match in _SHAPE.finditer(entry.shapes)]
                new = [shape for shape in shapes if shape not in known]
                if step and new and first is None:
                    # First those at the same place of the same line.
                    place = shapes.index(new[0])
                    there = [at[place] for at in lines[entry.line] if len(at) > place]
                    similar = _similar(new[0], (*known, *there))
                    # A first shape of its kind is a part of the script that runs for the first time.
                    if similar:
                        first = (of(entry.line) if entry.line else None, f"{similar} → {new[0]}")
                known |= dict.fromkeys(shapes)
                lines[entry.line].append(shapes)
            if first is not None:
                ranks[step, *first].append((record.rank or 0, len(entries)))
    for (step, line, shape), where in sorted(ranks.items(), key=lambda item: item[0][0]):
        kernels = max(count for _, count in where)
        yield NewShape(step, line, shape, kernels, tuple(sorted(rank for rank, _ in where)))


def _similar(shape: str, known: Sequence[str]) -> str:
    """Return the last known shape of the same type that differs in a single size; "" if none does."""
    match = _SHAPE.fullmatch(shape)
    assert match is not None
    if not match["sizes"]:
        return ""
    sizes = match["sizes"].split(", ")
    for candidate in reversed(known):
        other = _SHAPE.fullmatch(candidate)
        if other is None or not other["sizes"] or other["type"] != match["type"]:
            continue
        others = other["sizes"].split(", ")
        if len(others) == len(sizes) and _differences(sizes, others) == 1:
            return candidate
    return ""


def _differences(sizes: Sequence[str], others: Sequence[str]) -> int:
    return sum(size != other for size, other in zip(sizes, others, strict=True))

"""Replicas that run different graphs: with a collective in them, where a TPU hangs, and without one."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from migrate.observe.graph_dump import DumpFrame
from migrate.observe.graphs import INPUT_SHAPE, differences, without_places
from migrate.observe.places import ExecutionCause
from migrate.observe.programs import ObservedProgram, ObservedPrograms, reads
from migrate.observe.records import Execution, Interval


@dataclass(frozen=True)
class GraphDivergence:
    """Location where a replica diverges from the first replica.

    Attributes:
        step: the number of the sync at whose end the first one's program was, from 1.
        ranks: the first replica, and the other.
        frames: the line of each that made the difference, or None if it executed nothing more.
        changes: what the graph of the other one has that the first one's has not. Empty if one of them
            executed nothing more.
        pending: whether a collective may be pending there, of which the recording of a simulation does not
            tell: see `migrate.observe.programs.ObservedProgram`.
    """

    step: int
    ranks: tuple[int, int]
    frames: tuple[DumpFrame | None, DumpFrame | None]
    changes: tuple[str, ...]
    pending: bool = False


# A program, with the sync that ended the interval in which it ended.
_ProgramRun = tuple[ObservedProgram, Interval]
# Nodes of the graphs of two replicas, for each replica by the hash of the graph.
_Known = Sequence[Mapping[str, Sequence[str]]]


_NONE = (None, None)
# Changes that a Python number alone makes: 0 and 1 are constants of a graph, other numbers are inputs.
_OF_A_NUMBER = re.compile(r"\d+ (more|fewer): (inputs|prim::Constant)\b|\w+ of \S+: ")
_READ_BESIDE_SYNC = "the same graph, which one replica reads and the other synchronizes"


def is_cut(steps: Sequence[Interval]) -> bool:
    """Whether a simulation cut graphs of a run at collectives."""
    return any(
        execution.cause is ExecutionCause.SIMULATION
        for step in steps
        for execution in step.executions
    )


def alone_words(simulated: bool) -> str:
    """Return what is known of replicas that run different graphs with no collective in them.

    Args:
        simulated: whether graphs were cut at the collectives.
    """
    if simulated:
        return (
            "no replica waited in the simulation, which cuts graphs at collectives; a TPU does not, so call "
            "torch_xla.sync() on all replicas before and after these lines"
        )
    return "nothing waits on a TPU"


def divergence_remedy(changes: Sequence[str]) -> str:
    """Return what to do about replicas that run different graphs.

    Args:
        changes: what the graph of one replica has that the other's has not: `GraphDivergence.changes`.
    """
    if _is_reordered(changes):
        return (
            "the same inputs come in another order: do not use the replica's index as a position, as in "
            "`parts[rank]` (migrate check --explain XLA307)"
        )
    if changes and changes[0].startswith(INPUT_SHAPE):
        return (
            "give all replicas batches of the same shape: pad to one length, or to a few that all take "
            "together (docs/shims/static-shapes.md)"
        )
    if changes and all(map(_OF_A_NUMBER.match, changes)):
        return (
            "if that line computes with the replica's index, make the index a tensor (migrate check "
            "--explain XLA307); else run the same computation on every replica"
        )
    return "run the same computation on every replica, and print or save the result on one"


def _is_reordered(changes: Sequence[str]) -> bool:
    """Whether the inputs of one graph have the shapes of the other's in another order."""
    pairs = [
        re.match(rf"{INPUT_SHAPE}: (\S+) → (\S+)", change)
        for change in changes
        if change.startswith(INPUT_SHAPE)
    ]
    shapes = [pair.groups() for pair in pairs if pair is not None]
    here, there = (sorted(pair[side] for pair in shapes) for side in (0, 1))
    return len(shapes) > 1 and here == there


def partings(steps: Sequence[Interval], *, stopped: bool = False) -> Iterator[GraphDivergence]:
    """Yield the first program of each replica that differs from the first replica's.

    Args:
        steps: intervals of all replicas.
        stopped: whether the run was stopped from outside. Some replicas were further then, and what only
            they have run is no difference.
    """
    by_rank: dict[int, list[Interval]] = defaultdict(list)
    for step in steps:
        by_rank[step.rank].append(step)
    first, *others = sorted(by_rank) or [0]
    for other in others:
        if difference := _first(by_rank[first], by_rank[other], stopped):
            yield difference


def alone(steps: Sequence[Interval]) -> Iterator[GraphDivergence]:
    """Yield where each replica first runs another graph than the first replica, with no collective in it.

    No replica waits for another one there, unless a collective may be pending. Each such graph is compiled by
    the replicas that run it.
    """
    by_rank: dict[int, list[Interval]] = defaultdict(list)
    for step in steps:
        by_rank[step.rank].append(step)
    first, *others = sorted(by_rank) or [0]
    for other in others:
        ours, theirs = by_rank[first], by_rank[other]
        known = _graphs(ours, theirs)
        for mine, its in zip(_programs(ours), _programs(theirs), strict=False):
            if not _same(mine[0], its[0], known):
                break
            unlike = _unlike(mine[0].before, its[0].before, known, reading=False)
            if unlike != _NONE:
                frames = _frame(unlike[0], mine), _frame(unlike[1], its)
                changes = _changes(*unlike, known) if all(unlike) else ()
                pending = any(map(_is_pending, unlike, (mine[0], its[0])))
                ranks = ours[0].rank, theirs[0].rank
                yield GraphDivergence(mine[1].number, ranks, frames, changes, pending)
                break


def _is_pending(execution: Execution | None, program: ObservedProgram) -> bool:
    """Whether a collective of the program before may have been pending when `execution` ran."""
    return any(earlier is execution for earlier in program.before[: program.pending])


def _first(
    ours: Sequence[Interval], theirs: Sequence[Interval], stopped: bool
) -> GraphDivergence | None:
    known = _graphs(ours, theirs)
    for mine, other in zip_longest(_programs(ours), _programs(theirs)):
        if stopped and (mine is None or other is None):
            return None
        if mine is None or other is None or not _same(mine[0], other[0], known):
            return _divergence(mine, other, known, (ours[0].rank, theirs[0].rank))
    return None


def _graphs(*sides: Sequence[Interval]) -> _Known:
    return [
        {
            execution.graph: execution.nodes
            for step in side
            for execution in step.executions
            if execution.nodes
        }
        for side in sides
    ]


def _programs(steps: Sequence[Interval]) -> Iterator[_ProgramRun]:
    programs = ObservedPrograms()
    for step in steps:
        for program in programs.add(step.executions, synchronized=step.line is not None):
            yield program, step


def _same(first: ObservedProgram, other: ObservedProgram, known: _Known) -> bool:
    return _unlike(first.parts, other.parts, known) == _NONE


def _divergence(
    first: _ProgramRun | None,
    other: _ProgramRun | None,
    known: _Known,
    ranks: tuple[int, int],
) -> GraphDivergence:
    step = next(run[1] for run in (first, other) if run)
    if first is None or other is None:
        frames = tuple(_frame(run[0].end, run) if run else None for run in (first, other))
        return GraphDivergence(step.number, ranks, (frames[0], frames[1]), ())
    alone = _unlike(first[0].before, other[0].before, known)
    together = _unlike(first[0].parts, other[0].parts, known)
    # A graph that one replica has run alone may be a part of the program of the other replica.
    here, there = (by_itself or part for by_itself, part in zip(alone, together, strict=True))
    changes: tuple[str, ...] = ()
    if here and there and (None in alone) == (alone == _NONE):
        changes = _changes(here, there, known)
    return GraphDivergence(step.number, ranks, (_frame(here, first), _frame(there, other)), changes)


def _changes(here: Execution | None, there: Execution | None, known: _Known) -> tuple[str, ...]:
    """Return what the second graph has and the first has not."""
    assert here is not None
    assert there is not None
    if _same_graph(here, there, known):
        return (_READ_BESIDE_SYNC,)
    return differences(known[0].get(here.graph, ()), known[1].get(there.graph, ()))


def _same_graph(here: Execution, there: Execution, known: _Known) -> bool:
    """Whether two replicas ran the same graph, by its text.

    The text has no positions of slices and no constants. The hash has them, and differs in torch_xla's own
    sharded training, which slices by the replica's index.
    """
    texts = known[0].get(here.graph, ()), known[1].get(there.graph, ())
    return without_places(texts[0]) == without_places(texts[1])


def _unlike(
    ours: Sequence[Execution],
    theirs: Sequence[Execution],
    known: _Known,
    *,
    reading: bool = True,
) -> tuple[Execution | None, Execution | None]:
    """Return the first two executions that differ, or None if there are none.

    Args:
        ours: executions of one replica.
        theirs: executions of the other.
        known: the nodes of their graphs.
        reading: whether a graph that is read differs from the same graph that is synchronized.
    """
    for execution, another in zip_longest(ours, theirs):
        if execution is None or another is None:
            return execution, another
        if not _same_graph(execution, another, known) or (
            reading and reads(execution) != reads(another)
        ):
            return execution, another
    return _NONE


def _frame(execution: Execution | None, run: _ProgramRun | None) -> DumpFrame | None:
    return (execution.line or (run[1].line if run else None)) if execution else None

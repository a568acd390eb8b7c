"""Combine the records of the replicas of an observed run: steps, their cost, and the causes."""

from __future__ import annotations

import functools
import linecache
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from migrate.observe.boundaries import MOST_STEPS
from migrate.observe.divergences import GraphDivergence, alone, is_cut, partings
from migrate.observe.graph_dump import DumpFrame
from migrate.observe.graphs import INPUT_SHAPE, NODE_SHAPE, differences, nearest, with_places
from migrate.observe.places import ExecutionCause
from migrate.observe.records import Execution, Interval, read_lines
from migrate.observe.untrained import untrained

# Syncs that compile in any training: the optimizer creates its state in the first.
WARM_UP = 2
# Executions for a value that Python waits for.
WAITS = frozenset({ExecutionCause.READ, ExecutionCause.COMPILED})


@dataclass(frozen=True)
class ObservedLine:
    """A line of the user's code, with its text; `file` is relative to where the command runs, if shorter."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Loop:
    """All steps that end at one line, on all ranks.

    Attributes:
        line: the `with torch_xla.step():`, or what else synchronizes.
        steps: number of steps, by rank.
        optimizer_steps: number of optimizer steps, by rank.
        warm_up: steps of a rank in which something was compiled; the first rank's.
        compiles, compile_seconds: compilations of the first rank, in its warm-up steps.
        warm_up_seconds: the first rank's, compilation included.
        steady_seconds: median wall time of the steps that compiled nothing; None if all did.
        executions: a steady step's graphs (all steps' if none is steady); those that only the
            simulation makes are apart, in `cuts`.
    """

    line: ObservedLine
    steps: int
    optimizer_steps: int
    warm_up: int
    compiles: int
    compile_seconds: float
    warm_up_seconds: float
    steady_seconds: float | None
    executions: float
    cuts: float


@dataclass(frozen=True)
class ObservedRead:
    """A line where Python needed a value, so that a graph was executed and waited for.

    Attributes:
        line: None where no code of the user's was running.
        cause: a read, or torch.compile.
        count: number on all ranks.
        per_step: how often it happened for each step of the loop that it belongs to, on average; 0 where it
            belongs to none. That is the line at which most of the steps with it end.
        ranks: the ranks on which it happened.
        trains: whether that loop trains: an evaluation and a save synchronize too.
    """

    line: ObservedLine | None
    cause: ExecutionCause
    count: int
    per_step: float
    ranks: tuple[int, ...]
    trains: bool = True


@dataclass(frozen=True)
class Recompilation:
    """A graph that was compiled although another had been compiled at the same place before.

    Attributes:
        step: the number of the sync at whose end it was, from 1.
        line: line of the user's code that asked for the graph.
        changes: against the most similar graph that ran at the same place before.
        ranks: the ranks on which it happened.
    """

    step: int
    line: ObservedLine | None
    changes: tuple[str, ...]
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Fallback:
    """An op that XLA does not lower: its inputs went to the host, it ran there, its result came back.

    Attributes:
        op: such as `aten::nonzero`.
        count: number on all ranks.
        lines: where a value was read in the steps in which it ran; one line is the op's own, several
            are candidates.
    """

    op: str
    count: int
    lines: tuple[ObservedLine, ...]


@dataclass(frozen=True)
class Divergence:
    """The first program with a collective that a replica ran otherwise than the first replica.

    On a TPU such a program waits for the other replicas, which have to run the same: see
    `migrate.observe.programs`. Programs that differ in the value of a constant only are the same: torch_xla's
    own have the rank in them. Those of a rendezvous do not count.

    Attributes:
        step: the number of the sync at whose end it was, from 1.
        ranks: the first replica, and the other.
        lines: what each of them executed where they part, or None if it executed nothing more, or where
            no code of the user's was running.
        changes: what the graph of the other one has that the first one's has not. Empty if one of
            them executed nothing more.
        pending: of programs without a collective: whether one may be pending there on a TPU, so that it is
            not known whether the replicas wait.
    """

    step: int
    ranks: tuple[int, int]
    lines: tuple[ObservedLine | None, ObservedLine | None]
    changes: tuple[str, ...]
    pending: bool = False


@dataclass(frozen=True)
class Unended:
    """A line of optimizer steps that no sync ends: their graph grows with each.

    Attributes:
        line: None where no code of the user's was running.
        steps: the most that were in one graph.
        ranks: the ranks on which it happened.
    """

    line: ObservedLine | None
    steps: int
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Untrained:
    """An optimizer whose parameters never got a gradient.

    Attributes:
        line: the line that made it, or None if no code of the user's was running.
        name: the class.
        parameters: how many it holds.
        steps: how many steps it made on a rank.
        ranks: the ranks on which it happened.
    """

    line: ObservedLine | None
    name: str
    parameters: int
    steps: int
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Observed:
    """The report of a run.

    Attributes:
        ranks: how many replicas wrote something.
        steps: every interval between two syncs, as recorded.
        simulated: whether graphs were cut at the collectives, as only the simulation does.
        alone: where replicas first run different graphs with no collective in them; nothing waits there,
            unless a collective may be pending, or the simulation has cut a graph at one.
        untrained: optimizers whose parameters never got a gradient.
    """

    ranks: int
    loops: tuple[Loop, ...]
    reads: tuple[ObservedRead, ...]
    recompilations: tuple[Recompilation, ...]
    fallbacks: tuple[Fallback, ...]
    divergences: tuple[Divergence, ...]
    unended: tuple[Unended, ...]
    simulated: bool
    steps: tuple[Interval, ...] = field(repr=False)
    alone: tuple[Divergence, ...] = ()
    untrained: tuple[Untrained, ...] = ()

    @property
    def syncs(self) -> int:
        """Number of the last sync of any rank."""
        return max((step.number for step in self.steps if step.line is not None), default=0)

    @property
    def training(self) -> list[Interval]:
        """The intervals that train, see `training_intervals`."""
        return training_intervals(self.steps)

    @property
    def last_recompilation(self) -> int:
        """Number of the last sync at which a graph was compiled again; 0: none was."""
        return max((recompilation.step for recompilation in self.recompilations), default=0)

    @property
    def shapes_change(self) -> bool:
        """Whether a graph was compiled again for another shape: of a short last batch, for example."""
        return any(
            change.startswith((INPUT_SHAPE, NODE_SHAPE))
            for recompilation in self.recompilations
            for change in recompilation.changes
        )

    @property
    def is_still_compiling(self) -> bool:
        """Whether graphs were compiled again in the second half of the run, after the warm-up."""
        return self.last_recompilation > max(WARM_UP, self.syncs / 2)


LineOf = Callable[[DumpFrame], ObservedLine]


def training_intervals(steps: Sequence[Interval]) -> list[Interval]:
    """Return the intervals that end at a line where an optimizer has stepped, micro-batches included.

    If no optimizer of torch was seen, all that end at a sync.
    """
    ended = [step for step in steps if step.line is not None]
    lines = {step.line for step in ended if step.optimizer_steps}
    return [step for step in ended if not lines or step.line in lines]


def observed(
    folder: Path, names: Mapping[Path, str] | None = None, *, stopped: bool = False
) -> Observed:
    """Return the report of the run that wrote to `folder`.

    Args:
        folder: the folder passed to `run_script`.
        names: what to call files whose own name says nothing, such as a rewritten script that is only
            there for the run.
        stopped: whether the run was stopped from outside, where one replica may have been further.
    """
    steps = read_lines(folder)
    known = {str(path.resolve()): name for path, name in (names or {}).items()}
    of = functools.partial(line_of, known)
    changed = functools.partial(_named_places, known)
    return Observed(
        ranks=len({step.rank for step in steps}),
        loops=tuple(_loops(steps, of)),
        reads=tuple(_reads(steps, of)),
        recompilations=tuple(_recompilations(steps, of, changed)),
        fallbacks=tuple(_fallbacks(steps, of)),
        divergences=tuple(_divergences(partings(steps, stopped=stopped), of, changed)),
        alone=tuple(_divergences(alone(steps), of, changed)),
        untrained=tuple(untrained_optimizers(folder, of)),
        unended=tuple(_unended(steps, of)),
        simulated=is_cut(steps),
        steps=tuple(steps),
    )


def line_of(names: Mapping[str, str], frame: DumpFrame) -> ObservedLine:
    """Return a line of the user's code, with its text.

    Args:
        names: what to call files, by their path.
        frame: the line.
    """
    relative = os.path.relpath(os.path.realpath(frame.file))
    name = names.get(frame.file) or min(relative, frame.file, key=len)
    return ObservedLine(name, frame.line, linecache.getline(frame.file, frame.line).strip())


def _loops(steps: Iterable[Interval], line_of: LineOf) -> Iterator[Loop]:
    by_line: dict[ObservedLine, list[Interval]] = defaultdict(list)
    for step in steps:
        if step.line is not None:
            by_line[line_of(step.line)].append(step)
    for line, steps_of_line in by_line.items():
        first = [step for step in steps_of_line if step.rank == steps_of_line[0].rank]
        warm_up = [step for step in first if step.compiles]
        steady = [step for step in steps_of_line if not step.compiles]
        counted = steady or steps_of_line
        yield Loop(
            line=line,
            steps=len(first),
            optimizer_steps=sum(step.optimizer_steps for step in first),
            warm_up=len(warm_up),
            compiles=sum(step.compiles for step in warm_up),
            compile_seconds=sum(step.compile_seconds for step in warm_up),
            warm_up_seconds=sum(step.seconds for step in warm_up),
            steady_seconds=median(step.seconds for step in steady) if steady else None,
            executions=_mean(len(step.executions) - _cuts(step) for step in counted),
            cuts=_mean(_cuts(step) for step in counted),
        )


def _unended(steps: Iterable[Interval], line_of: LineOf) -> Iterator[Unended]:
    steps_by_line: dict[ObservedLine | None, list[Interval]] = defaultdict(list)
    for step in steps:
        if step.steps_in_graph > MOST_STEPS:
            steps_by_line[line_of(step.unended) if step.unended else None].append(step)
    for line, where in steps_by_line.items():
        ranks = tuple(sorted({step.rank for step in where}))
        yield Unended(line, max(step.steps_in_graph for step in where), ranks)


def untrained_optimizers(folder: Path, line_of: LineOf) -> Iterator[Untrained]:
    """Yield the optimizers of a run whose parameters never got a gradient."""
    ranks: dict[tuple[ObservedLine | None, str, int], dict[int, int]] = defaultdict(dict)
    for optimizer in untrained(folder):
        line = line_of(optimizer.line) if optimizer.line else None
        ranks[line, optimizer.name, optimizer.parameters][optimizer.rank] = optimizer.steps
    for (line, name, parameters), steps in ranks.items():
        yield Untrained(line, name, parameters, max(steps.values()), tuple(sorted(steps)))


def _cuts(step: Interval) -> int:
    return sum(execution.cause is ExecutionCause.SIMULATION for execution in step.executions)


def _mean(counts: Iterable[int]) -> float:
    values = list(counts)
    return sum(values) / len(values)


def _reads(steps: Sequence[Interval], line_of: LineOf) -> Iterator[ObservedRead]:
    steps_by_read: dict[tuple[ObservedLine | None, ExecutionCause], list[Interval]] = defaultdict(
        list
    )
    for step in steps:
        for execution in step.executions:
            if execution.cause in WAITS:
                steps_by_read[
                    line_of(execution.line) if execution.line else None, execution.cause
                ].append(step)
    ended = Counter(line_of(step.line) for step in steps if step.line)
    training = {line_of(step.line) for step in training_intervals(steps) if step.line}
    for (line, cause), where in sorted(steps_by_read.items(), key=lambda item: -len(item[1])):
        loops = Counter(line_of(step.line) for step in where if step.line)
        most = max(loops, key=lambda loop: loops[loop], default=None)
        # What is read after the last step of a loop belongs to it as well.
        per_step = len(where) / ended[most] if most is not None else 0.0
        ranks = tuple(sorted({step.rank for step in where}))
        yield ObservedRead(
            line, cause, len(where), per_step, ranks, most is None or most in training
        )


def _named_places(names: Mapping[str, str], changes: Sequence[str]) -> tuple[str, ...]:
    """Return what differs between graphs, with the user's names for files whose own say nothing."""
    by_base = {Path(file).name: name for file, name in names.items()}

    def shown(place: str) -> str:
        file, _, line = place.rpartition(":")
        return f"{by_base.get(file, file)}:{line}"

    return tuple(with_places(change, shown) for change in changes)


def _recompilations(
    steps: Sequence[Interval],
    line_of: LineOf,
    named: Callable[[Sequence[str]], tuple[str, ...]],
) -> Iterator[Recompilation]:
    """Each place's graphs, one after the other, on each rank; equal findings of several ranks are one."""
    # Graphs of each rank and place, in the order of their last execution. Steps that accumulate gradients and
    # steps that update the weights alternate at one place, so the graph before is not always the changed one.
    executed: dict[tuple[object, ...], dict[str, tuple[str, ...]]] = defaultdict(dict)
    nodes: dict[tuple[int, str], tuple[str, ...]] = {}
    ranks_by_change: dict[tuple[int, ObservedLine | None, tuple[str, ...]], set[int]] = defaultdict(
        set
    )
    for step in steps:
        for place, execution in _placed(step):
            if execution.compiled:
                nodes[step.rank, execution.graph] = execution.nodes
                if executed[place]:
                    frame = execution.line or step.line
                    line = line_of(frame) if frame else None
                    before = nearest(list(executed[place].values()), execution.nodes)
                    changes = named(differences(before, execution.nodes))
                    ranks_by_change[step.number, line, changes].add(step.rank)
            executed[place].pop(execution.graph, None)
            executed[place][execution.graph] = nodes.get((step.rank, execution.graph), ())
    for (number, line, changes), ranks in sorted(
        ranks_by_change.items(), key=lambda item: item[0][0]
    ):
        yield Recompilation(number, line, changes, tuple(sorted(ranks)))


def _placed(step: Interval) -> Iterator[tuple[tuple[object, ...], Execution]]:
    """Yield the executions of a step with what makes them the successors of others.

    That is the rank, the line that synchronized, the line that asked, the cause, and how many of the
    same were before it in the step.
    """
    seen: Counter[tuple[object, ...]] = Counter()
    for execution in step.executions:
        place = (step.rank, step.line, execution.line, execution.cause)
        yield (*place, seen[place]), execution
        seen[place] += 1


def _fallbacks(steps: Iterable[Interval], line_of: LineOf) -> Iterator[Fallback]:
    counts: Counter[str] = Counter()
    lines: dict[str, set[ObservedLine]] = defaultdict(set)
    for step in steps:
        reads = [
            execution.line
            for execution in step.executions
            if execution.cause is ExecutionCause.READ
        ]
        read = {line_of(line) for line in reads if line is not None}
        for op, count in step.fallbacks.items():
            counts[op] += count
            name = op.removeprefix("aten::").strip("_")
            # An operator's inputs are computed for it, so that its line is among those that read. A backward
            # pass runs in a thread without lines: the other lines that read may then be of other operators.
            own = {line for line in read if name in line.text}
            lines[op] |= own or (set() if None in reads else read)
    for op, count in counts.most_common():
        yield Fallback(op, count, tuple(sorted(lines[op], key=str)))


def _divergences(
    places: Iterable[GraphDivergence],
    line_of: LineOf,
    named: Callable[[Sequence[str]], tuple[str, ...]],
) -> Iterator[Divergence]:
    for difference in places:
        here, there = (line_of(frame) if frame else None for frame in difference.frames)
        yield Divergence(
            difference.step,
            difference.ranks,
            (here, there),
            named(difference.changes),
            difference.pending,
        )

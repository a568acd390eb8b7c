"""Watch from inside a replica what XLA compiles and executes; loaded through `shims.activate`.

Nothing of the device is read: torch_xla's own metrics, its dump of executed graphs and the Python
stack at each sync are the source. The dump costs a text of the whole graph for each execution, so the
times of an observed run are not those of a run without; `benchmarks/simulation_overhead.py` measures it.
"""

from __future__ import annotations

import atexit
import hashlib
import multiprocessing.util
import os
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from migrate.observe.boundaries import MOST_STEPS, StepsInGraph, at_each_end
from migrate.observe.graph_dump import DumpFrame, executions
from migrate.observe.graphs import without_places
from migrate.observe.places import cause_of, current_line, users_frame
from migrate.observe.programs import ObservedPrograms, reads
from migrate.observe.records import (
    OBSERVE_DIRECTORY,
    Execution,
    Interval,
    note_error,
    write_line,
)
from migrate.observe.untrained import OptimizerWatch
from shims import activate
from shims.errors import ReplicasDisagreeError

_NANOSECONDS = 1e-9
# Reading a value is a fallback by torch_xla's way of counting; it is reported as a read.
_READS = frozenset({"aten::_local_scalar_dense", "aten::item"})


def install() -> None:
    """Watch this process, once it imports torch_xla."""
    folder = Path(os.environ[OBSERVE_DIRECTORY])
    _name_dump(folder)
    # A forked replica writes a file of its own; torch_xla reads the name at the first execution.
    os.register_at_fork(after_in_child=lambda: _name_dump(folder))
    activate.after_import("torch_xla", lambda: Observer(folder).start())


def _name_dump(folder: Path) -> None:
    os.environ["XLA_SAVE_TENSORS_FILE"] = str(folder / f"graphs.{os.getpid()}")
    os.environ["XLA_IR_DEBUG"] = "1"


@dataclass(frozen=True)
class _Counts:
    """torch_xla's metrics since the start of the process; times in seconds, data in bytes."""

    compiles: int
    compile_seconds: float
    execute_seconds: float
    sent: int
    received: int
    fallbacks: dict[str, int] = field(default_factory=dict)

    @classmethod
    def now(cls) -> _Counts:
        from torch_xla.debug import metrics

        def total(name: str) -> tuple[int, float]:
            data = metrics.metric_data(name)
            return (data[0], data[1]) if data else (0, 0.0)

        compiles, compiling = total("CompileTime")
        return cls(
            compiles,
            compiling * _NANOSECONDS,
            total("ExecuteTime")[1] * _NANOSECONDS,
            int(total("OutboundData")[1]),
            int(total("InboundData")[1]),
            {
                name: metrics.counter_value(name)
                for name in metrics.counter_names()
                if name.startswith("aten::") and name not in _READS
            },
        )


class Observer:
    """Record of what a process has executed since its last sync.

    Args:
        folder: folder for the records.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0
        self._optimizer_steps = 0
        self._in_graph = StepsInGraph()
        self._optimizers = OptimizerWatch(_rank)
        self._unended: DumpFrame | None = None
        self._known: set[str] = set()
        self._since = time.perf_counter()
        self._before = _Counts(0, 0.0, 0.0, 0, 0)
        self._finished = False
        self._graphs: dict[str, str] = {}
        self._programs = ObservedPrograms()
        # Of this replica and of the first one, so far as not compared.
        self._ran: deque[str] = deque()
        self._first: deque[str] = deque()
        self._read_to = 0

    def start(self) -> None:
        """Register for each sync, each optimizer step and the end."""
        at_each_end(lambda: self._close(current_line()))
        self._optimizers.follow()
        register_optimizer_step_post_hook(self._optimizer_stepped)
        # After torch_xla's own, so that it comes before them: the runtime is still there.
        atexit.register(self.finish)
        self._follow_errors()
        # Children of multiprocessing skip atexit; those that are forked have to say so themselves.
        _finish_with(self)
        os.register_at_fork(after_in_child=lambda: _finish_with(self))

    def _follow_errors(self) -> None:
        """Write the exception that ends the process."""
        show = sys.excepthook

        def noting(kind: type[BaseException], error: BaseException, trace: Any) -> None:
            note_error(self._folder, error)
            show(kind, error, trace)

        sys.excepthook = noting

    def _optimizer_stepped(self, optimizer: Any, *_: Any) -> None:
        self._optimizer_steps += 1
        self._optimizers.stepped(optimizer)
        if self._in_graph.stepped(optimizer) > MOST_STEPS and self._unended is None:
            self._unended = current_line()

    def finish(self) -> None:
        """Write what came after the last sync."""
        if not self._finished:
            self._finished = True
            self._optimizers.write(self._folder)
            self._close(None, ends=True)

    def _close(self, line: DumpFrame | None, *, ends: bool = False) -> None:
        """Write the interval that ends now, if XLA did anything in it.

        Raises:
            ReplicasDisagreeError: in the simulation, where a TPU would hang; not while the program ends.
        """
        counts, before = _Counts.now(), self._before
        executed = self._executed()
        now = time.perf_counter()
        # Without any sync nothing may have been executed at all.
        if executed or counts != before or self._unended is not None:
            self._number += 1
            self._write(line, now - self._since, counts, executed)
        self._before, self._optimizer_steps, self._unended = counts, 0, None
        self._in_graph.ended()
        if not ends and os.environ.get(activate.BACKEND) == "simulate":
            self._expect_equal_programs(executed, line)
        # What this took is nobody's step.
        self._since = time.perf_counter()

    def _expect_equal_programs(self, executed: Sequence[Execution], line: DumpFrame | None) -> None:
        """Raise if this replica ran another program with a collective than the first one, so far as known."""
        rank = _rank()
        ran = [
            " ".join(
                ("read " if reads(execution) else "") + self._graphs[execution.graph]
                for execution in program.parts
            )
            for program in self._programs.add(executed, synchronized=True)
        ]
        if rank == 0:
            with (self._folder / "programs").open("a") as file:
                file.writelines(f"{line}\n" for line in ran)
            return
        self._ran.extend(ran)
        self._first.extend(self._told_by_the_first())
        compared = min(len(self._ran), len(self._first))
        if any(self._ran.popleft() != self._first.popleft() for _ in range(compared)):
            where = f" at {line.file}:{line.line}" if line else ""
            raise ReplicasDisagreeError(
                f"up to sync {self._number}{where} replica {rank} runs a different graph with a "
                "collective than replica 0: on a TPU they wait for each other",
                "`migrate run` shows where they diverge; give all replicas batches of the same shape, and "
                "compute and read the same values on all",
            )

    def _write(
        self,
        line: DumpFrame | None,
        seconds: float,
        counts: _Counts,
        executed: tuple[Execution, ...],
    ) -> None:
        before = self._before
        fallbacks = {
            name: count - before.fallbacks.get(name, 0)
            for name, count in counts.fallbacks.items()
            if count > before.fallbacks.get(name, 0)
        }
        interval = Interval(
            rank=_rank(),
            number=self._number,
            line=line,
            seconds=seconds,
            compile_seconds=counts.compile_seconds - before.compile_seconds,
            compiles=counts.compiles - before.compiles,
            execute_seconds=counts.execute_seconds - before.execute_seconds,
            sent=counts.sent - before.sent,
            received=counts.received - before.received,
            optimizer_steps=self._optimizer_steps,
            steps_in_graph=self._in_graph.most,
            unended=self._unended,
            fallbacks=fallbacks,
            executions=executed,
            memory=_memory(),
        )
        with (self._folder / f"observed.{os.getpid()}.jsonl").open("a") as file:
            file.write(write_line(interval))

    def _executed(self) -> tuple[Execution, ...]:
        """Take what torch_xla has dumped: the file is emptied, or it would grow by every step."""
        run: list[Execution] = []
        # torch_xla appends the ordinal of the device to the name.
        for path in self._folder.glob(f"graphs.{os.getpid()}.*"):
            text = path.read_text(errors="replace")
            os.truncate(path, 0)
            for dumped in executions(text):
                new = dumped.graph not in self._known
                self._known.add(dumped.graph)
                if new:
                    self._graphs[dumped.graph] = _digest(dumped.nodes)
                run.append(
                    Execution(
                        dumped.graph,
                        cause_of(dumped.frames),
                        users_frame(dumped.frames),
                        new,
                        dumped.nodes if new else (),
                    )
                )
        return tuple(run)

    def _told_by_the_first(self) -> list[str]:
        """Return what the first replica has written about its programs since the last call."""
        try:
            with (self._folder / "programs").open() as file:
                file.seek(self._read_to)
                text = file.read()
        except FileNotFoundError:
            return []
        # What is being written at this moment may lack its end.
        whole = text[: text.rfind("\n") + 1]
        self._read_to += len(whole)
        return whole.splitlines()


def _digest(nodes: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(without_places(nodes)).encode()).hexdigest()[:16]


def _finish_with(observer: Observer) -> None:
    multiprocessing.util.Finalize(None, observer.finish, exitpriority=100)


def _rank() -> int:
    from torch_xla import runtime

    return int(runtime.global_ordinal())


def _memory() -> tuple[int, int] | None:
    """Bytes in use and the most so far; None on the CPU, which does not count them."""
    import torch_xla
    from torch_xla.core import xla_model

    try:
        info = xla_model.get_memory_info(torch_xla.device())
    except RuntimeError:
        return None
    return int(info["bytes_used"]), int(info.get("peak_bytes_used", info["bytes_used"]))

"""The programs that replicas run together on a TPU: those that hold a collective.

Such a program waits for the other replicas, which have to run the same one. A part of it that one replica
runs by itself before (it reads a value there) makes its program another one; so does a read where the others
synchronize, as a sync gives the memory of old values to new ones.

A graph without a collective waits for nobody: each replica has a chip of its own. Replicas may run different
ones in between, as where their shards of an evaluation set are unequal: a compilation for each shape.
What comes after the last collective is nobody else's affair either: a value that rank 0 prints at the end.

The simulation cuts a graph at each collective. What a TPU runs as one is put together again here: all that
the collectives cut off, and what comes after them up to the next sync or read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from migrate.observe.places import ExecutionCause
from migrate.observe.records import Execution

_COLLECTIVE = re.compile(r" xla::(?:cross_replica_|all_|reduce_scatter|collective_)")


@dataclass(frozen=True)
class ObservedProgram:
    """A program with a collective in it.

    Attributes:
        parts: the graphs that it was cut into, in their order.
        before: the graphs that this replica has run by itself since the program before.
        pending: how many of these, from the first on, ran before the replica synchronized. The program
            before had ended with a read, which on a TPU runs what the value needs and nothing else: its
            collectives may have been pending still, in one graph with these.
    """

    parts: tuple[Execution, ...]
    before: tuple[Execution, ...] = ()
    pending: int = 0

    @property
    def end(self) -> Execution:
        """End of the program: a sync, or a read."""
        return self.parts[-1]


def reads(execution: Execution) -> bool:
    """Whether Python waited for a value, and nothing was synchronized."""
    return execution.cause in (
        ExecutionCause.READ,
        ExecutionCause.COMPILED,
        ExecutionCause.WRAPPING,
    )


class ObservedPrograms:
    """Puts the programs of one replica together."""

    def __init__(self) -> None:
        self._parts: list[Execution] = []
        self._before: list[Execution] = []
        self._holding: set[str] = set()
        self._only_read = False
        self._pending = 0

    def add(
        self, executions: Iterable[Execution], *, synchronized: bool
    ) -> Iterator[ObservedProgram]:
        """Take note of the next executions, and yield each program that they end.

        Args:
            executions: the executions, in order.
            synchronized: whether a sync came after them, which may have had nothing left to execute here.
        """
        for execution in executions:
            if execution.cause is ExecutionCause.RENDEZVOUS:
                continue
            if any(map(_COLLECTIVE.search, execution.nodes)):
                self._holding.add(execution.graph)
            if execution.cause is ExecutionCause.SIMULATION:
                self._parts.append(execution)
            elif self._parts or execution.graph in self._holding:
                self._parts.append(execution)
                yield self._ended()
                self._only_read = reads(execution)
            else:
                self._before.append(execution)
                if execution.cause is ExecutionCause.SYNC:
                    self._only_read = False
                elif self._only_read:
                    self._pending = len(self._before)
        if self._parts and synchronized:
            yield self._ended()
        if synchronized:
            self._only_read = False

    def _ended(self) -> ObservedProgram:
        program = ObservedProgram(tuple(self._parts), tuple(self._before), self._pending)
        self._parts, self._before, self._pending = [], [], 0
        return program

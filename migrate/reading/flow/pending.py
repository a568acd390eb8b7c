"""Where some replicas alone look at a value whose collective has not run: they wait for ever.

Each function is followed statement by statement; what a function of the script leaves pending in its
result or its arguments counts at the call of it, as the collective itself would.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from migrate.reading.facts import Facts
from migrate.reading.flow.pending_elsewhere import makes_a_collective
from migrate.reading.flow.pending_state import Ran
from migrate.reading.flow.pending_values import is_collective
from migrate.reading.flow.pending_walk import Root, Walk


@dataclass(frozen=True)
class PendingRead:
    """A place where some replicas alone look at a value that waits for collectives.

    Args:
        read: the expression.
        guard: what keeps the other replicas from it.
        collectives: the calls in the same function that make the collectives, in the order of the source.
        elsewhere: whether one of them calls a function of another file.
    """

    read: cst.CSTNode
    guard: cst.CSTNode
    collectives: tuple[cst.Call, ...]
    elsewhere: bool


class Pending:
    """The reads of one script that wait for a collective in some replicas only.

    Args:
        facts: the script.
    """

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.calls: dict[int, cst.Call] = {}
        self.inner: dict[
            int, set[int]
        ] = {}  # the collectives of a call of a function of the script
        self.elsewhere: set[int] = set()  # calls of functions of other files
        self.lazy: set[int] = set()  # statement lines that go on with pending values, unread
        self._ran: dict[int, Ran] = {}

    def reads(self) -> Iterator[PendingRead]:
        """Yield every such read, in the order of the functions."""
        if not self._concerned():
            return
        seen = set()
        context = self.facts.context
        roots: list[Root] = [context.module, *context.all_of(cst.FunctionDef)]
        for root in roots:
            if isinstance(root, cst.FunctionDef) and self.facts.steps.inside(root.body):
                continue  # XLA305 speaks of reads in the step
            for read, guard, origins in self.ran(root).hits:
                ids = [one for one in origins if isinstance(one, int) and self._apart(one, guard)]
                if ids and id(read) not in seen:
                    seen.add(id(read))
                    calls = sorted((self.calls[one] for one in ids), key=self._place)
                    far = any(one in self.elsewhere for one in ids)
                    yield PendingRead(read, guard, tuple(calls), far)

    def ran(self, root: Root) -> Ran:
        """Return what running `root` leaves; nothing while it is under way."""
        if id(root) not in self._ran:
            self._ran[id(root)] = Ran()
            self._ran[id(root)] = Walk(self, root).ran()
        return self._ran[id(root)]

    def _concerned(self) -> bool:
        if "shims" in self.facts.names.roots:
            return False  # its collectives run at once outside of a step
        return any(
            is_collective(call, self.facts) or makes_a_collective(call, self.facts)
            for call in self.facts.calls
        )

    def _apart(self, collective: int, guard: cst.CSTNode) -> bool:
        """Whether replicas come to the collective that do not come to what is below `guard`."""
        return self.facts.guards.around(self.calls[collective]) is not guard

    def _place(self, call: cst.Call) -> tuple[int, int]:
        start = self.facts.context.position(call)
        return start.line, start.column

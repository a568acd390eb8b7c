"""Defer the reads of one loop until something uses their values, with the edits for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import libcst as cst

from migrate.reading.flow.dataflow import aliases, flow, is_view, overlap
from migrate.reading.flow.reads import DeviceReads
from migrate.reading.replicas.first_replica import joined
from migrate.reading.steps.leaving import may_stop
from migrate.reading.steps.loops import Loop, batch_names
from migrate.reading.values.collectives import TENSORS, called
from migrate.reading.values.device_values import DeviceValues
from migrate.rewrite.edits.nodes import split_blank
from migrate.rewrite.rule import Replacement
from migrate.rewrite.rules.step.deferral.observers import Observers
from migrate.rewrite.rules.step.deferral.reading import (
    Reading,
    as_reading,
    kept_values,
    why_it_stays,
)
from migrate.rewrite.rules.step.deferral.written import RecordedReading, bare
from migrate.syntax.tree import base_name, code, nodes

if TYPE_CHECKING:
    from migrate.rewrite.workspace import Workspace

Found = tuple[cst.CSTNode, Callable[..., Replacement], str]
STEPS = frozenset({"torch_xla.step", "shims.step", "shims.step.step"})


class Deferring:
    """Deferral of the values that one loop reads in every step.

    Args:
        loop: a loop with a block of statements.
        context: the script, with its step in `with torch_xla.step():`.

    Attributes:
        stays: the statements that still read in every step, each with the reason.
    """

    def __init__(self, loop: Loop, context: Workspace) -> None:
        assert isinstance(loop.body, cst.IndentedBlock)
        self._loop = loop
        self._context = context
        self._block = loop.body.body
        self._found: list[Reading] = []
        self._moved: list[Reading] = []
        self.stays: list[tuple[str, str]] = []
        steps = [i for i, statement in enumerate(self._block) if self._is_step(statement)]
        if steps and loop.orelse is None:
            self._values = DeviceValues(loop.body, batch_names(loop, context), context)
            self._observers = Observers(loop, context)
            self._look_between(steps)
            self._look(steps[-1] + 1)

    @property
    def deferred(self) -> list[Reading]:
        """The reads that are made later."""
        return [*self._moved, *self._found]

    def _is_step(self, statement: cst.CSTNode) -> bool:
        return isinstance(statement, cst.With) and any(
            isinstance(item.item, cst.Call)
            and self._context.qualified_name(item.item.func) in STEPS
            for item in statement.items
        )

    def _look_between(self, steps: Sequence[int]) -> None:
        """Inspect the statements between two steps. What follows depends on what they read."""
        for index in range(steps[0] + 1, steps[-1]):
            line = self._block[index]
            plain = isinstance(line, cst.SimpleStatementLine) or may_stop(line, self._context)
            if index in steps or not plain:
                continue
            if next(DeviceReads(self._values, self._context).inside(line), None):
                shown = line.test if isinstance(line, cst.If) else line
                self._stay(shown, "is read between two steps, which may hang on it")

    def _look(self, start: int) -> None:
        """Look at the statements from `start` on."""
        taken: set[int] = set()
        for index in range(start, len(self._block)):
            line = self._block[index]
            if id(line) in taken:
                continue
            sites = list(DeviceReads(self._values, self._context).inside(line))
            if isinstance(line, cst.If | cst.While):
                sites = [site for site in sites if site is line.test]
                if sites:
                    self._stay(line.test, "decides what comes next")
                continue
            if not sites or not isinstance(line, cst.SimpleStatementLine):
                continue
            reading = as_reading(line, sites[0]) if len(sites) == 1 else None
            if reading is None:
                self._stay(line, why_it_stays(line, sites, self._context))
                continue
            why = self._take(reading, index)
            if reading.variable is not None:
                self._values.names.discard(reading.variable)
            if why is not None:
                self._stay(line, why)
                continue
            taken.update(id(line) for line in reading.lines)
            (self._moved if self._only_shown(reading) else self._found).append(reading)

    def _stay(self, node: cst.CSTNode, why: str) -> None:
        shown = node.body[0] if isinstance(node, cst.SimpleStatementLine) else node
        self.stays.append((code(shown), why))

    def _take(self, reading: Reading, index: int) -> str | None:
        """Record in `reading` the uses and observers of its value. Return why it stays, or None."""
        for line in self._block[index + 1 :]:
            if not isinstance(line, cst.SimpleStatementLine):
                continue
            names = {name.value for name in self._context.below(line, cst.Name)}
            if names & reading.fresh and not reading.take(line):
                return why_it_stays(line, [line], self._context)
        if (why := self._observers.find(reading)) is not None:
            return why
        kept = kept_values(reading, self._varying(), self._values, self._context)
        if kept is None:
            return "is used together with something of its step that is no number"
        reading.kept = kept
        return None

    def _varying(self) -> set[str]:
        """Return the names that the loop binds or changes."""
        names = set(self._flow(self._loop.body).written)
        if isinstance(self._loop, cst.For):
            names |= {name.value for name in self._context.below(self._loop.target, cst.Name)}
        return names

    def _flow(self, node: cst.CSTNode):  # type: ignore[no-untyped-def]
        return flow(node, self._values, self._context)

    def _only_shown(self, reading: Reading) -> bool:
        """Whether the value is used in `if`s below it and nowhere else: then it is read there."""
        if reading.takes or reading.seen_after or not is_view(reading.tensor):
            return False
        start = self._block.index(reading.line)
        later = list(self._block[start + 1 :])
        changed = self._changed(reading, later)
        return not changed and all(guard in later for guard in reading.flushes)

    def _changed(self, reading: Reading, statements: Sequence[cst.BaseStatement]) -> bool:
        """Whether one of `statements` may change the memory of the tensor that `reading` reads."""
        base = base_name(reading.tensor)
        if base is None or not is_view(reading.tensor):
            return False
        same = {base}
        for name, other in aliases(self._block):
            if {name, other} & same:
                same |= {name, other}
        for statement in statements:
            if overlap(same, self._flow(statement).edited):
                return True
            for call in self._context.below(statement, cst.Call):
                if called(call, self._context) in TENSORS and same & _names(call.args):
                    return True
        return False

    def _tensor(self, reading: Reading) -> str:
        """Return the expression to append to the list: a copy if the memory may change before the read."""
        tensor = code(reading.tensor)
        base = str(base_name(reading.tensor))
        bound = (i for i, s in enumerate(self._block) if base in self._flow(s).assigned)
        first = next(bound, None)
        at = self._block.index(reading.line)
        others = [*self._block[: first or 0], *self._block[at + 1 :]]
        lasts = is_view(reading.tensor) and first is None
        if lasts or self._changed(reading, others):
            return f"{tensor}.detach().clone()"
        return tensor if self._has_no_gradient(reading.tensor) else f"{tensor}.detach()"

    def _has_no_gradient(self, tensor: cst.BaseExpression) -> bool:
        """Whether `tensor` was detached already, or counts."""
        if isinstance(tensor, cst.Name):
            values = [v for v in self._context.bound_values(tensor) if v is not None]
            return any(code(v).endswith((".detach()", ".detach().clone()")) for v in values)
        return any(
            isinstance(node, cst.Comparison)
            or (isinstance(node, cst.Name) and node.value in ("eq", "argmax"))
            for node in nodes(tensor)
        )

    def edits(self) -> Iterator[Found]:
        """Yield the nodes to edit, each with the function that makes the new node, and the message."""
        for reading in self._moved:
            yield from self._moves(reading)
        writing = [
            (reading, RecordedReading(reading, self._tensor(reading), self._context))
            for reading in self._found
        ]
        for reading, written in writing:
            message = f"{code(reading.read)} is read later, where its value is used"
            yield reading.line, written.keep, message
            for line in reading.lines[1:]:
                yield line, lambda _: cst.RemoveFromParent(), message
        by_guard: dict[int, tuple[cst.If, list[RecordedReading]]] = {}
        for reading, written in writing:
            for guard in reading.flushes:
                by_guard.setdefault(id(guard), (guard, []))[1].append(written)
        moved = {id(guard): [r for r in self._moved if guard in r.flushes] for guard in self._ifs()}
        for key, (guard, flushed) in by_guard.items():
            yield guard, self._flushing(guard, flushed, moved.get(key, [])), "read the values here"
        if writing:
            yield (
                self._loop,
                self._around([written for _, written in writing]),
                "keep the values of the turns until they are read",
            )

    def _ifs(self) -> list[cst.If]:
        return [statement for statement in self._block if isinstance(statement, cst.If)]

    def _moves(self, reading: Reading) -> Iterator[Found]:
        """Yield the edits that read a value in the `if`s that show it."""
        message = f"{code(reading.read)} is read where it is shown"
        yield reading.line, lambda _: cst.RemoveFromParent(), message
        flushed = {id(guard) for reading in self._found for guard in reading.flushes}
        for guard in reading.flushes:
            if id(guard) not in flushed:
                others = [r for r in self._moved if guard in r.flushes]
                if others[0] is reading:
                    yield guard, self._flushing(guard, [], others), message

    def _flushing(
        self, guard: cst.If, flushed: Sequence[RecordedReading], moved: Sequence[Reading]
    ) -> Callable[[cst.If], Replacement]:
        """Return the statements that read the values observed in `guard`, at its start or above it."""
        common = self._observers.common_test(guard) or []
        rank = len(common) and code(joined(tuple(common))) != code(guard.test)

        def replace(updated: cst.If) -> Replacement:
            reads = [line for written in flushed for line in written.flush()]
            shown = [bare(reading.line) for reading in moved]
            above: list[cst.BaseStatement] = []
            if rank and reads:
                blank, comments = split_blank(updated.leading_lines)
                test = joined(tuple(common))
                above = [cst.If(test, cst.IndentedBlock(reads), leading_lines=blank)]
                updated = updated.with_changes(leading_lines=comments)
                reads = []
            body = updated.body
            if not isinstance(body, cst.IndentedBlock):  # `if …: print(…)` on one line
                suite = cst.ensure_type(body, cst.SimpleStatementSuite)
                body = cst.IndentedBlock([cst.SimpleStatementLine(suite.body)])
            loop_test = updated.with_changes(
                body=body.with_changes(body=[*reads, *shown, *body.body])
            )
            return cst.FlattenSentinel([*above, loop_test]) if above else loop_test

        return replace

    def _around(self, kept: Sequence[RecordedReading]) -> Callable[[Loop], Replacement]:
        """Return the code that creates the lists above the loop, and reads the rest of them below it."""

        def replace(updated: Loop) -> Replacement:
            blank, comments = split_blank(updated.leading_lines)
            above = [written.start() for written in kept]
            above[0] = above[0].with_changes(leading_lines=blank)
            below = [
                line for written in kept if written.reading.seen_after for line in written.flush()
            ]
            return cst.FlattenSentinel(
                [*above, updated.with_changes(leading_lines=comments), *below]
            )

        return replace


def _names(args: Sequence[cst.Arg]) -> set[str]:
    """Return the variables that a call is given as they are."""
    return {arg.value.value for arg in args if isinstance(arg.value, cst.Name)}

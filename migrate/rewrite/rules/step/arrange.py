"""Move out of the step what reads values, logs or saves, where that provably changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import libcst as cst

from migrate.catalogue.words import READ_METHODS
from migrate.reading.flow.dataflow import flow, overlap
from migrate.reading.flow.reads import DeviceReads
from migrate.reading.steps.block import Body
from migrate.reading.steps.leaving import leaves_turn, may_stop
from migrate.reading.steps.outside import Outside
from migrate.reading.steps.statement import Statement
from migrate.reading.steps.tails import Tail
from migrate.rewrite.rules.step.detached_read import Read, as_read
from migrate.syntax.tree import code, nodes_of

# What moves below the block where nothing speaks against it.
MOVES = frozenset({Outside.GUARD, Outside.SAVE, Outside.READ, Outside.LOG, Outside.SYNC})
DECIDES = "it decides whether the rest of the step runs"


@dataclass
class Arrangement:
    """What becomes of the statements `first` to `last` of a block.

    Args:
        body: the block.
        first, last: the indices of the run.
        below: the indices of the statements that move below the block.
        above: the indices of those that move above it.
        split: of the statements that move below, those whose tensor stays: `value = tensor.item()`.
        copies: for a statement below the block, the names that it reads from copies made at its old
            place, each with how the copy is made: a later statement changes what it reads.
        kept: what stays though it should not, and why.
        checks: the indices of tests that decide whether the rest of the step runs, of values or below what
            leaves the step: the step ends before each of them, and another one begins after it.
    """

    body: Body
    first: int
    last: int
    below: set[int] = field(default_factory=set)
    above: set[int] = field(default_factory=set)
    split: dict[int, Read] = field(default_factory=dict)
    copies: dict[int, dict[str, str]] = field(default_factory=dict)
    kept: dict[int, str] = field(default_factory=dict)
    checks: list[int] = field(default_factory=list)

    def staying(self) -> list[int]:
        """Return the indices of the statements in the block."""
        away = self.below | self.above
        return [i for i in range(self.first, self.last + 1) if i not in away]

    def after(self, index: int) -> Iterator[Statement]:
        """Yield the statements in the block that come after the one at `index`."""
        return (self.body.statements[i] for i in self.staying() if i > index)

    def obstacles(self) -> list[int]:
        """Return the indices of what must not be in a step and cannot be moved out of it."""
        never = {Outside.GUARD, Outside.SAVE, Outside.EVALUATION, Outside.LOG, Outside.STEPS}
        return [i for i in self.staying() if self.body.statements[i].outside in never]


def arrange(body: Body, first: int, last: int) -> Arrangement:
    """Return which statements of the run leave the step, and which have to stay though they should not."""
    found = Arrangement(body, first, last)
    needed = _core(found, frozenset())
    stopping = _stopping(found)
    core = _core(found, stopping)
    found.checks = [i for i in sorted(stopping - needed) if _asks_values(found, i)]
    movable = {i for i in range(first, last + 1) if body.statements[i].outside in MOVES}
    found.below = movable - core
    found.kept = {
        i: DECIDES if i in stopping else "the step needs what it finds" for i in movable & core
    }
    for _ in range(last - first + 1):
        if not _settle(found, core, stopping):
            break
    found.checks = sorted({*found.checks, *_skipping(found, stopping)})
    for index in sorted(found.below):
        copies = _copies(found, index)
        read = _read(found, body.statements[index])
        if read is not None and (copies or not read.names_a_tensor):
            found.split[index] = read
            continue
        if copies:
            found.copies[index] = copies
    _lift_schedules(found)
    for index in found.staying():
        end = body.tails.get(index)
        if end is not None and _tail_depends(found, end, index):
            return arrange(body.with_whole(index), first, last)
    return found


def _tail_depends(found: Arrangement, end: Tail, index: int) -> bool:
    """Whether running the end of the statement at `index` after the block changes anything."""
    statement, context = found.body.statements[index], found.body.context
    leaving = [Statement(node, statement.values, context) for node in end.statements]
    later = list(found.after(index))
    trains = statement.effect or any(map(_trains, later))
    if trains and later and any(may_stop(one.node, context) for one in leaving):
        return True
    if any(leaves_turn(one.node) for one in later):
        return True
    if isinstance(end.node, cst.If):
        asked = flow(end.node.test, statement.values, context).used
        if any(overlap(asked, other.flow.written) for other in (statement, *later)):
            return True
    used = {name for one in leaving for name in one.flow.used}
    written = {name for one in leaving for name in one.flow.written}
    if any(overlap(used | written, other.flow.written) for other in later):
        return True
    if any(overlap(written, other.flow.used) for other in later):
        return True
    return bool(later) and bool(overlap(used, found.body.state))


def _trains(statement: Statement) -> bool:
    """Whether `statement` is a part of the training itself: a backward pass, an update, its gradients."""
    return bool(
        statement.effect
        or statement.averages
        or statement.clears_gradients
        or statement.edits_gradients
    )


def _stopping(found: Arrangement) -> frozenset[int]:
    """Return the indices of the statements that decide whether what comes after them runs."""
    body = found.body
    return frozenset(
        i
        for i in range(found.first, found.last)
        if not body.statements[i].effect and may_stop(body.statements[i].node, body.context)
    )


def _asks_values(found: Arrangement, index: int) -> bool:
    """Whether the statement at `index` asks for values of the device: by itself, or of reads before it."""
    statements = found.body.statements
    statement = statements[index]
    mentions = statement.values.mentions
    given = (arg.value for call in nodes_of(statement.node, cst.Call) for arg in call.args)
    if statement.outside in MOVES or any(map(mentions, given)):
        return True
    needed = set(statement.flow.used)
    for before in range(index - 1, found.first - 1, -1):
        earlier = statements[before]
        if overlap(earlier.flow.written, needed):
            if earlier.outside is Outside.READ:
                return True
            needed |= earlier.flow.used
    return False


def _core(found: Arrangement, stopping: frozenset[int]) -> set[int]:
    """Return the indices of what stays: the effects of the step, `stopping`, and what makes their inputs."""
    body = found.body
    core: set[int] = set()
    needed: set[str] = set()
    for index in range(found.last, found.first - 1, -1):
        statement = body.statements[index]
        on_state = statement.outside is None and overlap(statement.flow.used, body.state)
        stays = _trains(statement) or on_state or index in stopping
        if stays or overlap(statement.flow.written, needed):
            core.add(index)
            needed |= statement.flow.used
    return core


def _skipping(found: Arrangement, stopping: frozenset[int]) -> set[int]:
    """Return the indices of what may leave the turn before something that came above it has run."""
    first = min(found.below, default=found.last)
    statements = found.body.statements
    return {i for i in stopping if i > first and leaves_turn(statements[i].node)}


def _settle(found: Arrangement, core: set[int], stopping: frozenset[int]) -> bool:
    """Take one statement out of the block, or back into it; return whether there was one."""
    statements = found.body.statements
    for index in sorted(found.below):
        statement = statements[index]
        why = _obstacle(found, statement, index) or _skipped(found, index, stopping)
        for later in found.staying():
            if why or later < index:
                continue
            if overlap(statement.flow.written, statements[later].flow.used):
                if later not in core:
                    found.below.add(later)
                    return True
                why = f"`{head(statements[later].node)}` needs it"
        if why:
            found.below.discard(index)
            found.kept[index] = why
            return True
    return False


def _obstacle(found: Arrangement, statement: Statement, index: int) -> str:
    """Return why `statement` may not run after the block; empty where it may."""
    later = list(found.after(index))
    if later and leaves_turn(statement.node):
        return DECIDES
    if _read(found, statement) is not None:
        rebinds = any(overlap(statement.flow.assigned, s.flow.assigned) for s in later)
        return "it is bound anew before the step ends" if rebinds else ""
    changes = [s for s in later if s.effect or s.averages or s.clears_gradients]
    if changes and _on_state(found, statement):
        return f"`{head(changes[0].node)}` changes what it looks at"
    hits = _changed(found, statement, later)
    copies = _copies(found, index)
    if hits and set(copies) != hits:
        listed = ", ".join(sorted(hits))
        return f"{listed} changes before the step ends"
    return ""


def _skipped(found: Arrangement, index: int, stopping: frozenset[int]) -> str:
    """Return what may skip the statement at `index` below the block; empty where nothing in it does.

    The step ends before those of `stopping`, so that what comes above them still runs.
    """
    within = (i for i in found.staying() if i > index and i not in stopping)
    nodes_within = (found.body.statements[i].node for i in within)
    leaves = next((node for node in nodes_within if leaves_turn(node)), None)
    return f"`{head(leaves)}` may leave the block before its end" if leaves is not None else ""


def _read(found: Arrangement, statement: Statement) -> Read | None:
    """Return the read `value = tensor.item()` that `statement` is, if any."""
    read = as_read(statement.node)
    return read if read is not None and found.body.values.mentions(read.tensor) else None


def _on_state(found: Arrangement, statement: Statement) -> bool:
    """Whether `statement` looks at a model or an optimizer; the learning rate counts as none."""
    used = {name for name in statement.flow.used if "param_groups" not in name.split(".")}
    if overlap(used, found.body.state):
        return True
    hidden = statement.outside in (Outside.SAVE, Outside.GUARD)
    return hidden and any(
        code(call.func).startswith("self.") and found.body.context.called(call)
        for call in nodes_of(statement.node, cst.Call)
    )


def _changed(found: Arrangement, statement: Statement, later: Iterable[Statement]) -> set[str]:
    """Return the names that `statement` reads and one of `later` binds anew or changes in place."""
    later = list(later)
    scheduled = any(other.outside is Outside.SCHEDULE for other in later)
    used = {n for n in statement.flow.used if scheduled or "param_groups" not in n.split(".")}
    hits: set[str] = set()
    for other in later:
        written = other.flow.assigned | _with_aliases(other.flow.edited, found.body.aliases)
        hits |= overlap(used, written)
        hits |= overlap(statement.flow.assigned, other.flow.assigned)
    return hits


def _with_aliases(names: set[str], pairs: list[tuple[str, str]]) -> set[str]:
    """Return `names` and all other names of the same memory."""
    found = set(names)
    before = -1
    while before < len(found):
        before = len(found)
        for one, other in pairs:
            if overlap([one], found) or overlap([other], found):
                found |= {one, other}
    return found


def _copies(found: Arrangement, index: int) -> dict[str, str]:
    """Return the tensors that the statement at `index` has to read from a copy, and how it is made.

    Only a name by itself that is read as a tensor gets one: `loss.item()` before `loss /= 4`.
    """
    statement = found.body.statements[index]
    later = list(found.after(index))
    copies = {}
    for name in _changed(found, statement, later):
        if name not in found.body.values.names or not _read_as_tensor(statement, name):
            continue
        edited = {n for s in later for n in _with_aliases(s.flow.edited, found.body.aliases)}
        in_place = bool(overlap([name], edited))
        copies[name] = f"{name}.detach().clone()" if in_place else f"{name}.detach()"
    return copies


def _read_as_tensor(statement: Statement, name: str) -> bool:
    """Whether `statement` reads the plain variable `name` as a tensor of its own."""
    if "." in name or name in statement.flow.written:
        return False
    for read in DeviceReads(statement.values, statement.context).inside(statement.node):
        if isinstance(read, cst.Call) and isinstance(read.func, cst.Attribute):
            receiver = read.func.value
            if read.func.attr.value in READ_METHODS and code(receiver) == name:
                return True
        if isinstance(read, cst.Call) and any(code(arg.value) == name for arg in read.args):
            return True
    return False


def _lift_schedules(found: Arrangement) -> None:
    """Move settings of the learning rate above the block where only inputs are moved before them."""
    statements = found.body.statements
    for index in range(found.first, found.last + 1):
        statement = statements[index]
        if statement.outside is not Outside.SCHEDULE:
            continue
        before = [statements[i] for i in found.staying() if i < index]
        if before and all(_independent(statement, other) for other in before):
            found.above.add(index)


def _independent(schedule: Statement, other: Statement) -> bool:
    """Whether `other` only moves inputs, and neither it nor `schedule` has to do with the other."""
    calls = nodes_of(other.node, cst.Call)
    methods = all(
        isinstance(c.func, cst.Attribute) and other.values.mentions(c.func.value) for c in calls
    )
    if not methods or other.effect or other.outside is not None:
        return False
    if may_stop(other.node, other.context):
        return False
    return not (
        overlap(schedule.flow.written, other.flow.used | other.flow.written)
        or overlap(schedule.flow.used, other.flow.written)
    )


def feedback(found: Arrangement) -> Iterator[tuple[int, list[str]]]:
    """Yield the statements below the block that read what the next step uses, and the names of that."""
    statements = found.body.statements
    for index in sorted(found.below):
        if statements[index].outside is not Outside.READ:
            continue
        earlier = (statements[i].flow.used for i in found.staying() if i < index)
        names = {
            name for used in earlier for name in overlap(statements[index].flow.assigned, used)
        }
        if names:
            yield index, sorted(names)


def head(node: cst.BaseStatement) -> str:
    """Return the first line of a statement, without what stands above it."""
    if isinstance(node, cst.SimpleStatementLine):
        return code(node.body[0])
    bare = node.with_changes(leading_lines=()) if hasattr(node, "leading_lines") else node
    return cst.Module(body=[]).code_for_node(bare).strip().splitlines()[0]

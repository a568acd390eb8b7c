"""Move reads, logs and saves out of the step, if that provably changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import libcst as cst

from migrate.catalogue.words import READ_METHODS
from migrate.reading.flow.dataflow import flow, meet_in_a_file, overlap
from migrate.reading.flow.reads import DeviceReads
from migrate.reading.steps.block import Body, Tail
from migrate.reading.steps.leaving import leaves_turn, may_stop
from migrate.reading.steps.outside import Outside
from migrate.reading.steps.statement import Statement
from migrate.rewrite.rules.step.detached_read import TensorRead, as_read
from migrate.syntax.tree import code, first_line, nodes, nodes_of

# What moves below the block where nothing speaks against it.
MOVES = frozenset({Outside.GUARD, Outside.SAVE, Outside.READ, Outside.LOG, Outside.SYNC})
DECIDES = "it decides whether the rest of the step runs"


@dataclass
class Arrangement:
    """Arrangement of the statements `first` to `last` of a block around the step.

    Args:
        body: the block.
        first, last: the first and last index of the run.
        below: the indices of the statements that move below the step's block.
        above: the indices of the statements that move above the step's block.
        split: the moved statements whose tensor stays in the step: `value = tensor.item()`.
        copies: for a statement below the step's block, the names that it reads from copies, each with how
            the copy is made. A copy is made at the old position if a later statement changes the value.
        kept: statements that stay although they should move, with the reason.
        checks: the indices of tests that decide whether the rest of the step runs. They test values, or
            stand below a statement that leaves the step. A step ends before each test, and another step
            begins after it.
    """

    body: Body
    first: int
    last: int
    below: set[int] = field(default_factory=set)
    above: set[int] = field(default_factory=set)
    split: dict[int, TensorRead] = field(default_factory=dict)
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
    arrangement = Arrangement(body, first, last)
    needed = _core(arrangement, frozenset())
    stopping = _stopping(arrangement)
    core = _core(arrangement, stopping)
    arrangement.checks = [i for i in sorted(stopping - needed) if _asks_values(arrangement, i)]
    movable = {i for i in range(first, last + 1) if body.statements[i].outside in MOVES}
    arrangement.below = movable - core
    arrangement.kept = {
        i: DECIDES if i in stopping else "the step needs what it finds" for i in movable & core
    }
    for _ in range(last - first + 1):
        if not _settle(arrangement, core, stopping):
            break
    arrangement.checks = sorted({*arrangement.checks, *_skipping(arrangement, stopping)})
    for index in sorted(arrangement.below):
        copies = _copies(arrangement, index)
        read = _read(arrangement, body.statements[index])
        if read is not None and (copies or not read.names_a_tensor):
            arrangement.split[index] = read
            continue
        if copies:
            arrangement.copies[index] = copies
    _lift_schedules(arrangement)
    for index in arrangement.staying():
        end = body.tails.get(index)
        if end is not None and _tail_depends(arrangement, end, index):
            return arrange(body.with_whole(index), first, last)
    return arrangement


def _tail_depends(arrangement: Arrangement, end: Tail, index: int) -> bool:
    """Whether running the end of the statement at `index` after the block changes anything."""
    statement, context = arrangement.body.statements[index], arrangement.body.context
    leaving = [Statement(node, statement.values, context) for node in end.statements]
    later = list(arrangement.after(index))
    trains = statement.effect or any(map(_trains, later))
    if trains and later and any(may_stop(statement.node, context) for statement in leaving):
        return True
    if any(leaves_turn(statement.node) for statement in later):
        return True
    if isinstance(end.node, cst.If):
        asked = flow(end.node.test, statement.values, context).used
        if any(overlap(asked, other.flow.written) for other in (statement, *later)):
            return True
    used = {name for statement in leaving for name in statement.flow.used}
    written = {name for statement in leaving for name in statement.flow.written}
    if any(overlap(used | written, other.flow.written) for other in later):
        return True
    if any(meet_in_a_file(s.node, other.node, context) for s in leaving for other in later):
        return True
    if any(overlap(written, other.flow.used) for other in later):
        return True
    return bool(later) and bool(overlap(used, arrangement.body.state))


def _trains(statement: Statement) -> bool:
    """Whether `statement` is a part of the training itself: a backward pass, an update, its gradients."""
    return bool(
        statement.effect
        or statement.averages
        or statement.clears_gradients
        or statement.edits_gradients
    )


def _stopping(arrangement: Arrangement) -> frozenset[int]:
    """Return the indices of the statements that decide whether what comes after them runs."""
    body = arrangement.body
    return frozenset(
        i
        for i in range(arrangement.first, arrangement.last)
        if not body.statements[i].effect and may_stop(body.statements[i].node, body.context)
    )


def _asks_values(arrangement: Arrangement, index: int) -> bool:
    """Whether the statement at `index` asks for values of the device: by itself, or of reads before it."""
    statements = arrangement.body.statements
    statement = statements[index]
    mentions = statement.values.mentions
    arguments = (arg.value for call in nodes_of(statement.node, cst.Call) for arg in call.args)
    if statement.outside in MOVES or any(map(mentions, arguments)):
        return True
    needed = set(statement.flow.used)
    for before in range(index - 1, arrangement.first - 1, -1):
        earlier = statements[before]
        if overlap(earlier.flow.written, needed):
            if earlier.outside is Outside.READ:
                return True
            needed |= earlier.flow.used
    return False


def _core(arrangement: Arrangement, stopping: frozenset[int]) -> set[int]:
    """Return the indices of what stays: the effects of the step, `stopping`, and what makes their inputs."""
    body = arrangement.body
    core: set[int] = set()
    needed: set[str] = set()
    for index in range(arrangement.last, arrangement.first - 1, -1):
        statement = body.statements[index]
        on_state = statement.outside is None and overlap(statement.flow.used, body.state)
        stays = _trains(statement) or on_state or index in stopping
        if stays or overlap(statement.flow.written, needed):
            core.add(index)
            needed |= statement.flow.used
    return core


def _skipping(arrangement: Arrangement, stopping: frozenset[int]) -> set[int]:
    """Return the indices of what may leave the turn before something that came above it has run."""
    first = min(arrangement.below, default=arrangement.last)
    statements = arrangement.body.statements
    return {i for i in stopping if i > first and leaves_turn(statements[i].node)}


def _settle(arrangement: Arrangement, core: set[int], stopping: frozenset[int]) -> bool:
    """Take one statement out of the block, or back into it; return whether there was one."""
    statements = arrangement.body.statements
    for index in sorted(arrangement.below):
        statement = statements[index]
        why = _obstacle(arrangement, statement, index) or _skipped(arrangement, index, stopping)
        for later in arrangement.staying():
            if why or later < index:
                continue
            if overlap(statement.flow.written, statements[later].flow.used):
                if later not in core:
                    arrangement.below.add(later)
                    return True
                why = f"`{head(statements[later].node)}` needs it"
        if why:
            arrangement.below.discard(index)
            arrangement.kept[index] = why
            return True
    return False


def _obstacle(arrangement: Arrangement, statement: Statement, index: int) -> str:
    """Return why `statement` may not run after the block. Empty if it may."""
    later = list(arrangement.after(index))
    if later and leaves_turn(statement.node):
        return DECIDES
    if _read(arrangement, statement) is not None:
        rebinds = any(overlap(statement.flow.assigned, s.flow.assigned) for s in later)
        return "it is bound anew before the step ends" if rebinds else ""
    context = arrangement.body.context
    reader = next((s for s in later if meet_in_a_file(statement.node, s.node, context)), None)
    if reader is not None:
        return f"`{head(reader.node)}` may read the file that it writes"
    changes = [s for s in later if s.effect or s.averages or s.clears_gradients]
    if changes and _on_state(arrangement, statement):
        return f"`{head(changes[0].node)}` changes what it looks at"
    hits = _changed(arrangement, statement, later)
    copies = _copies(arrangement, index)
    if hits and set(copies) != hits:
        listed = ", ".join(sorted(hits))
        return f"{listed} changes before the step ends"
    return ""


def _skipped(arrangement: Arrangement, index: int, stopping: frozenset[int]) -> str:
    """Return what may skip the statement at `index` below the block. Empty if nothing in it does.

    The step ends before those of `stopping`, so that what comes above them still runs.
    """
    within = (i for i in arrangement.staying() if i > index and i not in stopping)
    nodes_within = (arrangement.body.statements[i].node for i in within)
    leaves = next((node for node in nodes_within if leaves_turn(node)), None)
    return f"`{head(leaves)}` may leave the block before its end" if leaves is not None else ""


def _read(arrangement: Arrangement, statement: Statement) -> TensorRead | None:
    """Return the read `value = tensor.item()` that `statement` is, if any."""
    read = as_read(statement.node)
    return read if read is not None and arrangement.body.values.mentions(read.tensor) else None


def _on_state(arrangement: Arrangement, statement: Statement) -> bool:
    """Whether `statement` observes a model or an optimizer. The learning rate does not count."""
    used = {name for name in statement.flow.used if "param_groups" not in name.split(".")}
    if overlap(used, arrangement.body.state):
        return True
    hidden = statement.outside in (Outside.SAVE, Outside.GUARD)
    return hidden and any(
        code(call.func).startswith("self.") and arrangement.body.context.called(call)
        for call in nodes_of(statement.node, cst.Call)
    )


def _changed(
    arrangement: Arrangement, statement: Statement, later: Iterable[Statement]
) -> set[str]:
    """Return the names that `statement` reads and that one of `later` rebinds or changes in place."""
    later = list(later)
    scheduled = any(other.outside is Outside.SCHEDULE for other in later)
    used = {n for n in statement.flow.used if scheduled or "param_groups" not in n.split(".")}
    hits: set[str] = set()
    for other in later:
        written = other.flow.assigned | _with_aliases(other.flow.edited, arrangement.body.aliases)
        hits |= overlap(used, written)
        hits |= overlap(statement.flow.assigned, other.flow.assigned)
    return hits


def _with_aliases(names: set[str], pairs: list[tuple[str, str]]) -> set[str]:
    """Return `names` and all other names of the same memory."""
    aliased = set(names)
    before = -1
    while before < len(aliased):
        before = len(aliased)
        for name, other in pairs:
            if overlap([name], aliased) or overlap([other], aliased):
                aliased |= {name, other}
    return aliased


def _copies(arrangement: Arrangement, index: int) -> dict[str, str]:
    """Return the tensors that the statement at `index` has to read from a copy, and how it is made.

    Only a name by itself that is read as a tensor gets one: `loss.item()` before `loss /= 4`.
    """
    statement = arrangement.body.statements[index]
    later = list(arrangement.after(index))
    copies = {}
    for name in _changed(arrangement, statement, later):
        if name not in arrangement.body.values.names or not _read_as_tensor(statement, name):
            continue
        edited = {n for s in later for n in _with_aliases(s.flow.edited, arrangement.body.aliases)}
        in_place = bool(overlap([name], edited))
        copies[name] = f"{name}.detach().clone()" if in_place else f"{name}.detach()"
    return copies


def _read_as_tensor(statement: Statement, name: str) -> bool:
    """Whether `statement` reads the plain variable `name` as an independent tensor."""
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


def _lift_schedules(arrangement: Arrangement) -> None:
    """Move settings of the learning rate above the block where only inputs are moved before them."""
    statements = arrangement.body.statements
    for index in range(arrangement.first, arrangement.last + 1):
        statement = statements[index]
        if statement.outside is not Outside.SCHEDULE:
            continue
        before = [statements[i] for i in arrangement.staying() if i < index]
        if before and all(_independent(statement, other) for other in before):
            arrangement.above.add(index)


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


def feedback(arrangement: Arrangement) -> Iterator[tuple[int, list[str]]]:
    """Yield the statements below the block that read what the next step uses, and the names of that."""
    statements = arrangement.body.statements
    for index in sorted(arrangement.below):
        if statements[index].outside is not Outside.READ:
            continue
        earlier = (statements[i].flow.used for i in arrangement.staying() if i < index)
        names = {
            name for used in earlier for name in overlap(_from_tensors(statements[index]), used)
        }
        if names:
            yield index, sorted(names)


def _from_tensors(statement: Statement) -> frozenset[str]:
    """Return the names that a statement assigns from tensors, or where tensors decide: not `losses = []`."""
    assigned = frozenset(statement.flow.assigned)
    assignments = list[tuple[str, cst.BaseExpression]]()
    for part in nodes(statement.node):
        if isinstance(part, cst.Assign):
            assignments += [(code(target.target), part.value) for target in part.targets]
        elif isinstance(part, cst.AugAssign | cst.AnnAssign) and part.value is not None:
            assignments.append((code(part.target), part.value))
    # Of the rest (the target of a loop or a `with`, several names at once) nothing is known.
    read = assigned - {name for name, _ in assignments}
    from_device = DeviceReads(statement.values, statement.context)

    def reads(value: cst.CSTNode) -> bool:
        # A call that is given something may compute with tensors: `torch.stack(losses)`.
        calls = (call for call in nodes_of(value, cst.Call) if code(call.func) != "len")
        if any(call.args or isinstance(call.func, cst.Attribute) for call in calls):
            return True
        if statement.values.mentions(value) or any(from_device.inside(value)):
            return True
        return bool(overlap(flow(value, statement.values, statement.context).used, read))

    while more := {name for name, value in assignments if name not in read and reads(value)}:
        read |= more
    branches = (p for p in nodes(statement.node) if isinstance(p, cst.If | cst.While | cst.IfExp))
    return assigned if any(reads(branch.test) for branch in branches) else read & assigned


def head(node: cst.BaseStatement) -> str:
    """Return the first line of a statement, without what stands above it."""
    if isinstance(node, cst.SimpleStatementLine):
        return code(node.body[0])
    return first_line(node)

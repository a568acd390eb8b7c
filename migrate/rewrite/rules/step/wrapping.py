"""Make the edits that put the steps of a block in `with torch_xla.step():`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import libcst as cst

from migrate.check.rules.ranks.guarded_read import GuardedRead
from migrate.check.which_read import code_said, first_code
from migrate.counts import many
from migrate.reading.facts import facts_of
from migrate.reading.flow.dataflow import overlap
from migrate.reading.flow.reads import DeviceReads
from migrate.reading.replicas.own_values import made_equal
from migrate.reading.steps.leaving import leaves_turn, may_stop
from migrate.reading.steps.outside import Outside
from migrate.reading.steps.statement import Statement
from migrate.rewrite.rule import Edit, RuleFinding, StatementRun, Wrap
from migrate.rewrite.rules.step.arrange import Arrangement, feedback
from migrate.rewrite.rules.step.detached_read import TensorRead, as_read
from migrate.rewrite.rules.step.layout import CutTail, StepLayout, new, original, renamed
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code, nodes, nodes_of

READS_INSIDE = "reads a value inside the step"
WAITS = "each step waits for it"
PARTS = "; replicas that decide differently run different graphs, and wait for each other: use torch.where"
READ_AFTER = "read after each step"
ONLY_TIMES = "only times its recording"


@dataclass
class Wrapping:
    """The edits and findings of the steps of one block.

    Args:
        rule: the name of the rule that asks for them.
        context: the script.
        parts: the steps, in the order of the source.
        moved: names of inputs that the first of them moves to the device.
    """

    rule: str
    context: Workspace
    parts: Sequence[Arrangement]
    moved: Sequence[str] = ()
    _reads: list[TensorRead] = field(default_factory=list)
    _tails: list[CutTail] = field(default_factory=list)
    _findings: list[RuleFinding] = field(default_factory=list)
    _notes: list[str] = field(default_factory=list)
    _inside: int = 0

    def found(self) -> Iterator[Edit | Wrap | RuleFinding]:
        """Yield the edits and the findings."""
        first, last = self.parts[0].first, self.parts[-1].last
        layouts = [self._layout(part, first) for part in self.parts]
        step = self.context.vocabulary.write("step")
        body = self.parts[0].body
        self._note_checks()
        yield from self._findings
        for read in self._reads:
            message = f"{read.name} is read after the step"
            said = code_said(read.call, facts_of(self.context))
            wrong = (
                f"`{code(read.call)}` waits for the device within the step: read it after the step"
            )
            yield Edit(self.rule, read.edited, read.kept, message, wrong=wrong, code=said)
        for cut in self._tails:
            end = cut.tail
            count = len(end.statements)
            ending = "the last statement" if count == 1 else f"the last {count} statements"
            message = f"{ending} of the block: moved below the step"
            verb = "belongs" if count == 1 else "belong"
            wrong = f"{ending} of the block {verb} below the step, which computes the values first"
            yield Wrap(
                self.rule, end.block, end.statements[0], end.statements[-1], cut.cut, message, wrong
            )
        statements = body.block.body
        yield Wrap(
            self.rule,
            body.block,
            statements[first],
            statements[last],
            lambda run: self._made(run, layouts, step),
            self._message(),
            f"XLA does not see where the step ends: put {self._block()}",
        )

    def _made(
        self, run: StatementRun, layouts: Sequence[StepLayout], step: str
    ) -> list[cst.BaseStatement]:
        statements: list[cst.BaseStatement] = []
        start = self.parts[0].first
        below = start
        for part, layout in zip(self.parts, layouts, strict=True):
            for index in range(below, part.first):  # a save or an evaluation between two steps
                statements.extend(run.parts[index - start])
            statements.extend(layout.made(run, step))
            below = part.last + 1
        return statements

    def _layout(self, part: Arrangement, start: int) -> StepLayout:
        layout = StepLayout()
        if self.moved and part is self.parts[0]:
            block = part.body.block
            device = cst.Module(body=[]).code_for_node(self.context.vocabulary.device(block))
            values = ", ".join(f"{name}.to({device})" for name in self.moved)
            layout.inside.append(new(f"{', '.join(self.moved)} = {values}"))
            layout.added = 1
        copies = Copies(part, self.context)
        for index in range(part.first, part.last + 1):
            piece = original(index - start)
            if index in part.above:
                layout.above.append(piece)
            elif index in part.split:
                layout.inside.append(piece)
                self._after(layout, part.split[index])
            elif index in part.below:
                names, lines = copies.of(index)
                layout.inside.extend(new(line) for line in lines)
                layout.below.append(renamed(index - start, names) if names else piece)
            else:
                layout.inside.append(piece)
                self._nested(part, layout, index, start)
        self._inside += len(layout.inside)
        self._note(part)
        return layout

    def _after(self, layout: StepLayout, read: TensorRead) -> None:
        self._reads.append(read)
        layout.below.append(new(read.below))

    def _nested(self, part: Arrangement, layout: StepLayout, index: int, start: int) -> None:
        """Take what can leave the compound statement at `index` out of it, and report the rest."""
        reads = _nested_reads(part, index)
        end = part.body.tails.get(index)
        for read in reads:
            self._after(layout, read)
        if end is not None:
            cut = CutTail(end)
            self._tails.append(cut)
            layout.below.append(cut.piece(index - start))
        gone = {id(node) for read in reads for node in nodes(read.call)}
        self._report(part, index, gone)

    def _decides_alone(self, read: cst.CSTNode) -> bool:
        """Whether each replica decides by its own `read` what it computes in the step."""
        below = read
        for above in self.context.ancestors(read):
            if isinstance(above, cst.If) and below is above.test:
                equal = made_equal(above.test, self.context)
                return self.context.calls.replicated and not equal
            if isinstance(above, cst.BaseStatement):
                return False
            below = above
        return False

    def _report(self, part: Arrangement, index: int, gone: set[int]) -> None:
        """Report the reads that stay in the block."""
        statement = part.body.statements[index]
        why = part.kept.get(index, "")
        if statement.outside is Outside.TIMER:
            message = f"`{_head(statement.node)}` in the step {ONLY_TIMES}: time whole steps"
            self._findings.append(RuleFinding(self.rule, part.body.block.body[index], message))
        for read in DeviceReads(part.body.values, self.context).inside(statement.node):
            if id(read) in gone:
                continue
            message = f"`{code(read)}` {READS_INSIDE}"
            guard = self.context.guards.around(read)
            if isinstance(guard, cst.If) and _is_below(guard, statement.node):
                message += (
                    " on some of the replicas only: they run different graphs, and the program hangs; "
                    "move it below the block"
                )
                self._findings.append(RuleFinding(self.rule, read, message, code=GuardedRead.code))
                continue
            because = why or (
                "it decides whether the step trains" if _decides(read, statement) else ""
            )
            mend = f" ({because}): {WAITS}" if because else ": move it below the block"
            mend += PARTS if because and self._decides_alone(read) else ""
            self._findings.append(
                RuleFinding(self.rule, read, message + mend, code=self._code([read]))
            )

    def _code(self, reads: Iterable[cst.CSTNode]) -> str:
        """Return the code of the hazard that the first of some reads is."""
        return first_code(reads, facts_of(self.context))

    def _note(self, part: Arrangement) -> None:
        statements = part.body.statements
        if part.above:
            heads = ", ".join(_head(statements[i].node) for i in sorted(part.above))
            self._notes.append(f"`{heads}` moved above the block")
        if part.below:
            count = len(part.below)
            what = (
                "statements that log or read moved"
                if count > 1
                else "statement that logs or reads moved"
            )
            self._notes.append(f"{count} {what} below it")
        for index, names in feedback(part):
            message = (
                f"{', '.join(names)}: {READ_AFTER}, for the next one needs it: the device waits "
                "for the host at every step"
            )
            reads = DeviceReads(part.body.values, self.context).inside(statements[index].node)
            node = part.body.block.body[index]
            self._findings.append(RuleFinding(self.rule, node, message, code=self._code(reads)))

    def _note_checks(self) -> None:
        """Note the tests that lie between two steps."""
        for before, after in pairwise(self.parts):
            for statement in before.body.statements[before.last + 1 : after.first]:
                if may_stop(statement.node, self.context):
                    self._notes.append(f"`{_head(statement.node)}` stays between two steps")

    def _block(self) -> str:
        """Return the number of statements in the block, and its first line."""
        return f"{many(self._inside, 'statement')} in `with {self.context.vocabulary.say('step')}:`"

    def _message(self) -> str:
        message = self._block()
        if self.moved:
            message += f"; {', '.join(self.moved)} moved to the device"
        return "; ".join([message, *self._notes])


class Copies:
    """The copies that are made in a step for reads below it.

    Args:
        part: the arrangement of the step.
        context: the script, for names that are free.
    """

    def __init__(self, part: Arrangement, context: Workspace) -> None:
        self._part = part
        self._context = context
        self._made: dict[str, tuple[int, str]] = {}

    def of(self, index: int) -> tuple[dict[str, str], list[str]]:
        """Return the new names for the statement at `index`, and the lines that make the copies."""
        names, lines = {}, []
        for name, copy in sorted(self._part.copies.get(index, {}).items()):
            copied = self._made.get(name)
            if copied is not None and not self._changes(name, copied[0], index):
                names[name] = copied[1]
                continue
            names[name] = self._free(f"{name}_value", f"{name}_read")
            self._made[name] = (index, names[name])
            lines.append(f"{names[name]} = {copy}")
        return names, lines

    def _changes(self, name: str, start: int, end: int) -> bool:
        statements = self._part.body.statements
        return any(
            name in statements[i].flow.written for i in self._part.staying() if start < i < end
        )

    def _free(self, *names: str) -> str:
        taken = {name for _, name in self._made.values()}
        free = (n for n in names if n not in taken and not self._context.references(n))
        name = next(free, f"{names[0]}_")
        while name in taken or self._context.references(name):
            name += "_"
        return name


def _is_below(node: cst.CSTNode, root: cst.CSTNode) -> bool:
    return any(inner is node for inner in nodes(root))


def _head(node: cst.BaseStatement) -> str:
    if isinstance(node, cst.If):
        return f"if {code(node.test)}"
    return code(node.body[0]) if isinstance(node, cst.SimpleStatementLine) else code(node)[:60]


def _nested_reads(arrangement: Arrangement, index: int) -> list[TensorRead]:
    """Return the reads `value = tensor.item()` below `with` at `index` that can be made after the block."""
    statement = arrangement.body.statements[index]
    if not isinstance(statement.node, cst.With):
        return []
    later = [s.node for s in arrangement.after(index)]
    if any(map(leaves_turn, [statement.node, *later])):
        return []  # what leaves the turn would skip them
    lines = _lines(statement.node)
    reads = []
    for at, line in enumerate(lines):
        read = as_read(line)
        if read is None or not arrangement.body.values.mentions(read.tensor):
            continue
        rest = [Statement(s, statement.values, statement.context) for s in lines[at + 1 :]]
        used = {
            n for s in (*rest, *arrangement.after(index)) for n in s.flow.used | s.flow.assigned
        }
        if not overlap([read.name], used):
            reads.append(read)
    return reads


def _lines(block: cst.With) -> list[cst.BaseStatement]:
    """Return the statements that certainly run in a `with`, those of `with` blocks in it included."""
    lines: list[cst.BaseStatement] = []
    for statement in block.body.body:
        if isinstance(statement, cst.With):
            lines.extend(_lines(statement))
        elif isinstance(statement, cst.BaseStatement):
            lines.append(statement)
    return lines


def _decides(read: cst.CSTNode, statement: Statement) -> bool:
    """Whether `read` is in the test of a statement that trains: `if norm.isfinite(): optimizer.step()`."""
    tests = (node.test for node in nodes_of(statement.node, cst.If))
    return bool(statement.effect) and any(part is read for test in tests for part in nodes(test))

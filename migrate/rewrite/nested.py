"""What reads values or logs inside an `if` or a `with` that itself belongs in the step."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from migrate.rewrite.arrange import Arrangement
from migrate.rewrite.dataflow import base_name, overlap
from migrate.rewrite.layout import Piece
from migrate.rewrite.read import Read, as_read
from migrate.rewrite.rule import Run
from migrate.rewrite.slice import Statement
from migrate.rewrite.tree import code, nodes_of


def nested_reads(found: Arrangement, index: int) -> list[Read]:
    """Return the reads `value = tensor.item()` below `with` at `index` that can be made after the block."""
    statement = found.body.statements[index]
    if not isinstance(statement.node, cst.With):
        return []
    lines = _lines(statement.node)
    reads = []
    for at, line in enumerate(lines):
        read = as_read(line)
        if read is None or not found.body.values.mentions(read.tensor):
            continue
        later = [Statement(s, statement.values, statement.context) for s in lines[at + 1 :]]
        used = {n for s in (*later, *found.after(index)) for n in s.flow.used | s.flow.assigned}
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


class Tail:
    """The end of an `if` or `with` that leaves the step: logging after the optimizer's step.

    Args:
        node: the `if` or `with`.
        block: its body.
        statements: those at the end of the body that leave.
    """

    def __init__(
        self,
        node: cst.If | cst.With,
        block: cst.IndentedBlock,
        statements: Sequence[cst.BaseStatement],
    ) -> None:
        self.node = node
        self.block = block
        self.statements = statements
        self._updated: list[cst.BaseStatement] = []

    def cut(self, run: Run) -> Sequence[cst.BaseStatement]:
        """Take the updated statements out of the body; called before `piece`, from the inside out."""
        self._updated = list(run)
        return []

    def piece(self, index: int) -> Piece:
        """Return the piece that goes below the block: the statements, below the same test if it is one.

        Args:
            index: where in the run the `if` or `with` stands.
        """

        def make(run: Run) -> Sequence[cst.BaseStatement]:
            if not self._updated or not isinstance(self.node, cst.If):
                return self._updated
            parts = [part for part in run.parts[index] if isinstance(part, cst.If)]
            test = parts[0].test if parts else self.node.test
            body = cst.IndentedBlock(body=_without_blank_above(self._updated))
            return [cst.If(test=test, body=body)]

        return make


def _without_blank_above(statements: list[cst.BaseStatement]) -> list[cst.BaseStatement]:
    first = statements[0]
    lines = [line for line in getattr(first, "leading_lines", ()) if line.comment is not None]
    return [first.with_changes(leading_lines=lines), *statements[1:]]


def tail(found: Arrangement, index: int) -> Tail | None:
    """Return the end of the statement at `index` that leaves the step, if that changes nothing else."""
    statement = found.body.statements[index]
    node = statement.node
    if not isinstance(node, cst.If | cst.With) or not isinstance(node.body, cst.IndentedBlock):
        return None
    if isinstance(node, cst.If) and (node.orelse is not None or not _is_pure(node.test)):
        return None
    inner = [Statement(s, statement.values, statement.context) for s in node.body.body]
    trains = [i for i, s in enumerate(inner) if s.effect or s.averages or s.clears_gradients]
    start = next(
        (i for i in range(max(trains, default=-1) + 1, len(inner)) if inner[i].outside is not None),
        None,
    )
    if start is None or start == 0:
        return None
    leaving, kept = inner[start:], [*inner[:start], *found.after(index)]
    if isinstance(node, cst.With) and any(s.outside is None for s in leaving):
        return None  # what is computed there is computed in the context
    return None if _depends(found, leaving, kept, index) else _made(node, leaving)


def _made(node: cst.If | cst.With, leaving: Sequence[Statement]) -> Tail:
    assert isinstance(node.body, cst.IndentedBlock)
    return Tail(node, node.body, [statement.node for statement in leaving])


def _depends(
    found: Arrangement, leaving: Sequence[Statement], kept: Sequence[Statement], index: int
) -> bool:
    """Whether running `leaving` after the rest of the block changes anything."""
    node = found.body.statements[index].node
    later = list(found.after(index))
    test = (
        {str(base_name(n)) for n in nodes_of(node.test, cst.Name)}
        if isinstance(node, cst.If)
        else set()
    )
    if any(overlap(test, s.flow.written) for s in kept):
        return True
    used = {name for s in leaving for name in s.flow.used}
    written = {name for s in leaving for name in s.flow.written}
    if any(overlap(used | written, s.flow.written) for s in later):
        return True
    if any(overlap(written, s.flow.used) for s in later):
        return True
    return bool(later) and bool(overlap(used, found.body.state))


def _is_pure(test: cst.BaseExpression) -> bool:
    """Whether asking `test` twice gives the same answer: no calls but `len`."""
    return all(code(call.func) == "len" for call in nodes_of(test, cst.Call))

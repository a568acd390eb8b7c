"""Lay out the statements of a block around and in `with torch_xla.step():`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import libcst as cst

from migrate.reading.steps.block import Tail
from migrate.rewrite.edits.nodes import split_blank
from migrate.rewrite.rule import StatementRun

# What stands at one place of the new block, made from the updated statements of the run.
Piece = Callable[[StatementRun], Sequence[cst.BaseStatement]]


def original(index: int) -> Piece:
    """Return the piece that is the statement at `index` of the run, as other rules left it."""
    return lambda run: run.parts[index]


def new(text: str) -> Piece:
    """Return the piece that is the new statement `text`."""
    return lambda _: [cst.parse_statement(text)]


def renamed(index: int, names: dict[str, str]) -> Piece:
    """Return the piece that is the statement at `index` with variables renamed."""

    def make(run: StatementRun) -> Sequence[cst.BaseStatement]:
        return [_visited(statement, _Rename(names)) for statement in run.parts[index]]

    return make


@dataclass
class StepLayout:
    """Layout of a run of statements.

    Args:
        above: the pieces above the block.
        inside: the pieces in the block.
        below: the pieces directly below the block.
        added: the number of new pieces at the start of the block, before the first original piece.
    """

    above: list[Piece] = field(default_factory=list)
    inside: list[Piece] = field(default_factory=list)
    below: list[Piece] = field(default_factory=list)
    added: int = 0

    def made(self, run: StatementRun, step: str) -> list[cst.BaseStatement]:
        """Return the statements, those of the block in `with STEP:`."""
        above = _all(self.above, run)
        inside = _all(self.inside, run)
        if not inside:  # other rules have removed all of it
            return [*above, *_all(self.below, run)]
        at = min(self.added, len(inside) - 1)
        blank, kept = split_blank(getattr(inside[at], "leading_lines", ()))
        inside[at] = inside[at].with_changes(leading_lines=kept)
        block = cst.With(
            items=[cst.WithItem(cst.parse_expression(step))],
            body=cst.IndentedBlock(body=inside),
            leading_lines=blank,
        )
        return [*above, block, *_all(self.below, run)]


class CutTail:
    """The end of an `if` or a `with`, taken out of it and put below the step.

    Args:
        tail: where it is.
    """

    def __init__(self, tail: Tail) -> None:
        self.tail = tail
        self._updated: list[cst.BaseStatement] = []

    def cut(self, run: StatementRun) -> Sequence[cst.BaseStatement]:
        """Take the updated statements out of the body; called before `piece`, from the inside out."""
        self._updated = list(run)
        return []

    def piece(self, index: int) -> Piece:
        """Return the piece for below the block: the statements, below the same test if the piece is a test.

        Args:
            index: where in the run the `if` or `with` stands.
        """

        def make(run: StatementRun) -> Sequence[cst.BaseStatement]:
            if not self._updated or not isinstance(self.tail.node, cst.If):
                return self._updated
            parts = [part for part in run.parts[index] if isinstance(part, cst.If)]
            test = parts[0].test if parts else self.tail.node.test
            body = cst.IndentedBlock(body=_without_blank_above(self._updated))
            return [cst.If(test=test, body=body)]

        return make


def _without_blank_above(statements: list[cst.BaseStatement]) -> list[cst.BaseStatement]:
    first = statements[0]
    lines = [line for line in getattr(first, "leading_lines", ()) if line.comment is not None]
    return [first.with_changes(leading_lines=lines), *statements[1:]]


def _all(pieces: Iterable[Piece], run: StatementRun) -> list[cst.BaseStatement]:
    return [statement for piece in pieces for statement in piece(run)]


def _visited(statement: cst.BaseStatement, visitor: cst.CSTTransformer) -> cst.BaseStatement:
    done = statement.visit(visitor)
    assert isinstance(done, cst.BaseStatement)
    return done


class _Rename(cst.CSTTransformer):
    """Renames variables; attributes and keywords keep their names."""

    def __init__(self, names: dict[str, str]) -> None:
        super().__init__()
        self._names = names

    def leave_Attribute(
        self, original_node: cst.Attribute, updated_node: cst.Attribute
    ) -> cst.Attribute:
        """Keep the attribute's own name."""
        return updated_node.with_changes(attr=original_node.attr)

    def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> cst.Arg:
        """Keep the keyword's name."""
        return updated_node.with_changes(keyword=original_node.keyword)

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.Name:
        """Rename a variable."""
        name = self._names.get(original_node.value)
        return updated_node if name is None else updated_node.with_changes(value=name)

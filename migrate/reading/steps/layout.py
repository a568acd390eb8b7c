"""How the statements of a block are laid out around and in `with torch_xla.step():`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import libcst as cst

from migrate.reading.tree.tree import split_blank
from migrate.rewrite.rule import Run

# What stands at one place of the new block, made from the updated statements of the run.
Piece = Callable[[Run], Sequence[cst.BaseStatement]]


def original(index: int) -> Piece:
    """Return the piece that is the statement at `index` of the run, as other rules left it."""
    return lambda run: run.parts[index]


def new(text: str) -> Piece:
    """Return the piece that is the new statement `text`."""
    return lambda _: [cst.parse_statement(text)]


def renamed(index: int, names: dict[str, str]) -> Piece:
    """Return the piece that is the statement at `index` with variables renamed."""

    def make(run: Run) -> Sequence[cst.BaseStatement]:
        return [_visited(statement, _Rename(names)) for statement in run.parts[index]]

    return make


@dataclass
class Layout:
    """What becomes of a run of statements.

    Args:
        above: the pieces that go above the block.
        inside: the pieces in the block.
        below: the pieces right below the block.
        added: how many of the pieces in the block are new and come before the first original one.
    """

    above: list[Piece] = field(default_factory=list)
    inside: list[Piece] = field(default_factory=list)
    below: list[Piece] = field(default_factory=list)
    added: int = 0

    def made(self, run: Run, step: str) -> list[cst.BaseStatement]:
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


def _all(pieces: Iterable[Piece], run: Run) -> list[cst.BaseStatement]:
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

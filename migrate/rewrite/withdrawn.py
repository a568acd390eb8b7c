"""Withdrawn edits: the code stays, and the change is reported as manual work."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from migrate.rewrite.apply import conflicts
from migrate.rewrite.results import Note
from migrate.rewrite.rule import Edit, Wrap
from migrate.syntax.origins import Message

AnyEdit = Edit | Wrap


EVERYWHERE = (1, sys.maxsize)


@dataclass(frozen=True)
class Withdrawn:
    """The edits of one rule that are not made in some lines of a script.

    The edits of a rule in one function or class belong together: all are made, or none.

    Args:
        rule: name of the rule.
        first, last: the lines of the original script.
        why: reason why they cannot be made.
    """

    rule: str
    first: int
    last: int
    why: str

    def covers(self, rule: str, line: int) -> bool:
        """Whether an edit of `rule` at `line` of the original script is withdrawn."""
        return rule == self.rule and self.first <= line <= self.last

    def notes(self, edits: Iterable[Note]) -> Iterator[Note]:
        """Yield the findings that replace the withdrawn edits among `edits`."""
        for edit in edits:
            if self.covers(edit.rule, edit.line):
                yield withdrawn_note(edit, self.why)


def claims(edits: Sequence[AnyEdit]) -> Iterator[tuple[AnyEdit, str]]:
    """Yield the edits that claim the same code as another edit, each with the reason."""
    for edit, other in conflicts(edits):
        yield edit, f"the rule {other.rule} changes the same code ({other.message})"
        yield other, f"the rule {edit.rule} changes the same code ({edit.message})"


def culprits(
    edits: Sequence[AnyEdit], failure: Callable[[Sequence[AnyEdit]], str]
) -> Iterator[tuple[AnyEdit, str]]:
    """Yield the edits whose removal makes the other edits possible, each with the reason.

    Args:
        edits: the edits of a plan. They cannot all be made.
        failure: returns why edits cannot be made. Empty if they can.
    """
    kept: list[AnyEdit] = []
    for rule in dict.fromkeys(edit.rule for edit in edits):
        of_rule = [edit for edit in edits if edit.rule == rule]
        if not failure([*kept, *of_rule]):
            kept += of_rule
            continue
        for edit in of_rule:
            if why := failure([*kept, edit]):
                yield edit, why
            else:
                kept.append(edit)


def withdrawn_note(note: Note, why: str) -> Note:
    """Return the finding that replaces an edit whose note is `note`."""
    message = Message.of(note.message).ended(
        f": not done by the rule {note.rule}, because {why}; do it by hand"
    )
    return Note(note.line, note.column, note.rule, message, note.cell, withdrawn=True)


def is_covered(withdrawn: Iterable[Withdrawn], rule: str, line: int) -> bool:
    """Whether an edit of `rule` at `line` of the original script is withdrawn."""
    return any(edit.covers(rule, line) for edit in withdrawn)

"""Edits that are withdrawn: the code stays, and the change is reported, to be made by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from migrate.rewrite.apply import conflicts
from migrate.rewrite.results import NOT_DONE, Note
from migrate.rewrite.rule import Edit, Wrap

AnyEdit = Edit | Wrap


@dataclass(frozen=True)
class Withdrawn:
    """An edit that is not made.

    Args:
        note: the finding that replaces the edit, at a line of the original script.
        whole: whether all edits of the rule are withdrawn, not only those of this line.
    """

    note: Note
    whole: bool = False

    def covers(self, rule: str, line: int) -> bool:
        """Whether an edit of `rule` at `line` of the original script is withdrawn."""
        return rule == self.note.rule and (self.whole or line == self.note.line)


def claims(edits: Sequence[AnyEdit]) -> Iterator[tuple[AnyEdit, str]]:
    """Yield the edits that claim the same code as another one, and why they cannot be made."""
    for edit, other in conflicts(edits):
        yield edit, f"the rule {other.rule} changes the same code ({other.message})"
        yield other, f"the rule {edit.rule} changes the same code ({edit.message})"


def culprits(
    edits: Sequence[AnyEdit], failure: Callable[[Sequence[AnyEdit]], str]
) -> Iterator[tuple[AnyEdit, str]]:
    """Yield the edits without which the others can be made, and why each cannot.

    Args:
        edits: the edits of a plan, which cannot all be made.
        failure: returns why edits cannot be made; nothing where they can.
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
    message = f"{note.message}: {NOT_DONE}{note.rule}, because {why}; do it by hand"
    return Note(note.line, note.column, note.rule, message, note.cell)


def is_covered(withdrawn: Iterable[Withdrawn], rule: str, line: int) -> bool:
    """Whether an edit of `rule` at `line` of the original script is among those withdrawn."""
    return any(edit.covers(rule, line) for edit in withdrawn)

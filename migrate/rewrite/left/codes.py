"""Codes of a rewrite's findings, by which they are selected, silenced and explained, as hazards are.

Comments and `[tool.migrate]` apply as in `migrate check`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache

from migrate.check.config import Config, known_codes
from migrate.rewrite.results import NO_COMMENTS, Comments, Note
from migrate.rewrite.rules import all_rules, rules_by_name

# Findings without a rule: names that no rule handles, and cells of a notebook that stay unchanged.
UNHANDLED = "XLA725"
# Rules that report one thing at one of its lines, and name the others.
NAMING_LINES = frozenset({"frameworks", "save"})
NOTEBOOK = "XLA726"


def code_of(note: Note) -> str:
    """Return the code of an edit or finding of a rule, or of a hazard (whose name is its code).

    A note on a comment that was removed with code (`comments`) has no code: the name is returned.
    """
    return note.own_code or _by_name().get(note.rule, note.rule)


def is_at(note: Note, line: int, cell: int | None = None) -> bool:
    """Whether a finding is on a line, or names it as another of its lines."""
    if (note.cell, note.line) == (cell, line):
        return True
    return note.rule in NAMING_LINES and any(
        (related.path, related.cell, related.line) == (None, cell, line) for related in note.related
    )


def all_codes() -> tuple[str, ...]:
    """Return the codes of all hazards and rules, each once, in order."""
    of_rules = (code for rule in all_rules() for code in rule.codes)
    return tuple(sorted({*known_codes(), *_by_name().values(), *of_rules}))


@cache
def _by_name() -> dict[str, str]:
    rules = {name: rule.code for name, rule in rules_by_name().items()}
    return {**rules, "unhandled": UNHANDLED, "notebook": NOTEBOOK}


def selected(
    notes: Iterable[Note], config: Config, comments: Comments = NO_COMMENTS
) -> Iterator[Note]:
    """Yield the reported findings, each with its configured severity."""
    for note in notes:
        code = code_of(note)
        if not config.selects(code) or comments.silence(code, (note.cell, note.line)):
            continue
        severity = config.severity(code, note.severity)
        yield note if severity is note.severity else replace(note, severity=severity)


def with_used(comments: Comments, notes: Iterable[Note]) -> Comments:
    """Return the comments, and mark those that silence one of `notes` as used."""
    places = ((code_of(note), (note.cell, note.line)) for note in notes)
    used = {place for code, place in places if comments.silence(code, place)}
    return replace(comments, used=comments.used | used)

"""Select the reported findings of a rewrite: comments and `[tool.migrate]` apply as in `migrate check`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from migrate.check.config import Config
from migrate.rewrite.left.codes import code_of
from migrate.rewrite.results import NO_COMMENTS, Comments, Note


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

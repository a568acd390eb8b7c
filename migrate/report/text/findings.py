"""Manual work that remains: in groups on a terminal, one line each elsewhere, as linters print it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from migrate.check.hazard import Severity
from migrate.report.text.tables import plain_table
from migrate.rewrite.left.codes import code_of
from migrate.rewrite.results import Note
from migrate.syntax.origins import origins
from migrate.syntax.source import decoded

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

MOST_ALIKE = 5  # findings of a file that ask for the same, on a line each
SHOWN = 8  # places of a group on a terminal, after the first


@dataclass(frozen=True)
class WrittenFile:
    """A rewritten file.

    Attributes:
        name: where it was written, as the user knows it.
        lines: the line there for each line of the original that it has, both from 1.
    """

    name: str
    lines: Mapping[int, int]


def written_file(name: Path, before: bytes, after: bytes) -> WrittenFile:
    """Return the file `name` with content `after`, rewritten from `before`."""
    texts = [decoded(data, name).splitlines() for data in (before, after)]
    lines: dict[int, int] = {}
    for line, (of_original, _) in sorted(origins(*texts).items()):
        lines.setdefault(of_original, line)
    return WrittenFile(str(name), lines)


@dataclass(frozen=True)
class Findings:
    """Findings with the paths of their files, in the order in which they are shown.

    Their lines are those of the originals. `written` has the rewritten files by the paths of the originals: a
    finding then also names the line there, which is the one to edit.

    In a pipe or a file each is one line, `path:line:column: code severity message`, to be searched
    and clicked. On a terminal, what asks for the same at many places is shown once.
    """

    notes: Sequence[tuple[str, Note]]
    written: Mapping[str, WrittenFile] = field(default_factory=dict)

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        """Yield a table, or lines."""
        from rich.text import Text

        if console.is_terminal:
            yield self._table(self._groups())
            return
        yield from (
            Text(
                f"{path}:{note.place}: {_label(note)} {' '.join(note.message.split())}{more}"
                f"{self._line_now(path, note)}"
            )
            for path, note, more in self._without_repetition()
        )

    def _line_now(self, path: str, note: Note) -> str:
        """Say where the line is in the file that was written; "" if nothing was, or the line is new there."""
        written = self.written.get(path)
        line = written.lines.get(note.line) if written is not None and note.cell is None else None
        if written is None or line is None or (line == note.line and written.name == path):
            return ""
        return f" [{written.name}:{line}]"

    def _without_repetition(self) -> Iterator[tuple[str, Note, str]]:
        """Yield the findings with one for each group of many in a file that ask for the same."""
        alike = defaultdict(list)
        for path, note in self.notes:
            alike[path, note.rule, _to_do(note.message)].append(note)
        for path, note in self.notes:
            group = alike[path, note.rule, _to_do(note.message)]
            if len(group) <= MOST_ALIKE:
                yield path, note, ""
            elif note is group[0]:
                places = ", ".join(
                    finding.place.partition(":")[0] for finding in group[:MOST_ALIKE]
                )
                if note.cell is not None:
                    places = ", ".join(finding.place for finding in group[:MOST_ALIKE])
                yield (
                    path,
                    note,
                    f" ({len(group)} times in this file: {places}, \N{HORIZONTAL ELLIPSIS}; --json has all)",
                )

    def _groups(self) -> list[list[tuple[str, Note]]]:
        """Group findings of one rule with the same request, ordered by the first of each group."""
        groups = defaultdict(list)
        for path, note in self.notes:
            groups[note.rule, _to_do(note.message)].append((path, note))
        return list(groups.values())

    def _table(self, groups: Sequence[Sequence[tuple[str, Note]]]) -> RenderableType:
        from rich.text import Text

        table = plain_table()
        table.add_column(style="cyan", overflow="fold")
        table.add_column(style="magenta", no_wrap=True)
        table.add_column(overflow="fold", ratio=1)
        for group in groups:
            path, note = group[0]
            message = f"{note.message}{self._line_now(path, note)}"
            table.add_row(Text(f"{path}:{note.place}"), _label(note), Text(message))
            if more := _places(group):
                table.add_row("", "", Text(more, "dim"))
        return table


def count(findings: Sequence[Note]) -> str:
    """Say how many there are: "3 left to do by hand, 2 to look at (info)"."""
    look = sum(note.severity is Severity.INFO for note in findings)
    hand = len(findings) - look
    said = [f"{hand} left to do by hand"] if hand else []
    mark = " (info)" if hand else ""
    return ", ".join(said + ([f"{look} to look at{mark}"] if look else []))


def _label(note: Note) -> str:
    """The code and the severity, as `migrate check` has them."""
    return f"{code_of(note)} {note.severity.value}"


def _to_do(message: str) -> str:
    """Return what a message says to do; what it says that of comes before the colon."""
    _, colon, to_do = message.partition(": ")
    return to_do if colon else message


def _places(group: Sequence[tuple[str, Note]]) -> str:
    """Say where else; empty for a single one."""
    others = group[1:]
    if not others:
        return ""
    by_path = defaultdict(list)
    for path, note in others[:SHOWN]:
        by_path[path].append(note.place)
    said = "; ".join(f"{path}:{', '.join(places)}" for path, places in by_path.items())
    left = len(others) - SHOWN
    return f"the same {len(others)} times more: {said}" + (
        f" and {left} more (--json has them all)" if left > 0 else ""
    )

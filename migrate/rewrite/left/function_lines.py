"""Lines of a project's functions while its files are rewritten, turn by turn."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from migrate.model.calls.analysis import Analysis
from migrate.reading.project.reach import Leaving
from migrate.rewrite.results import FileRewrite, Note
from migrate.syntax.origins import Message, Related, origins

# A function by its class, its name, and the number of earlier functions of that name.
Key = tuple[str, str, int]
Lines = Mapping[Key, int]
Moved = Mapping[tuple[Path, int], int]


class FunctionLines:
    """Lines of functions at each turn of a rewrite.

    The facts about a file name the lines that other files had when the file went through its last turn. Rules
    that inspect the work of others may move these lines later.

    Args:
        first: the folder before the rewrite.
    """

    def __init__(self, first: Analysis) -> None:
        self._first = first
        self._turns: list[dict[Path, Lines]] = [{}]
        self._known_at: dict[Path, int] = {}
        self._moved: dict[int, Moved] = {}

    def turn(self, analysis: Analysis, changed: Collection[Path]) -> None:
        """Record the lines at the start of a turn.

        Args:
            analysis: the folder at the start of the turn.
            changed: the files that are not as they were at first.
        """
        resolved = (path.resolve() for path in changed)
        self._turns.append({path: _lines(analysis, path) for path in resolved})
        self._moved.clear()

    def known_now(self, path: Path) -> None:
        """Record that the facts about `path` come from the last turn that was recorded."""
        self._known_at[path.resolve()] = len(self._turns) - 1

    def known_at_first(self, path: Path) -> None:
        """Record that the facts about `path` come from the folder before the rewrite."""
        self._known_at.pop(path.resolve(), None)

    def present(self, path: Path, leavings: Collection[Leaving]) -> Iterator[Leaving]:
        """Yield the functions of other files that `path` runs, at their present lines."""
        moved = self._since(self._known_at.get(path, 0))
        for definition, entry in leavings:
            line = moved.get((definition.path, definition.line), definition.line)
            yield replace(definition, line=line), replace(entry, line=line)

    def _since(self, turn: int) -> Moved:
        """Return the present lines of the functions that moved after the start of `turn`."""
        if turn not in self._moved:
            moved = {}
            for path, now in self._turns[-1].items():
                before = self._turns[turn].get(path) or _lines(self._first, path)
                for key, line in before.items():
                    if key in now:
                        moved[path, line] = now[key]
            self._moved[turn] = moved
        return self._moved[turn]


class NeighborLines:
    """Lines of other files that messages name, as they are before the rewrite.

    Facts about a file name the lines that its neighbors had at the start of a turn.

    Args:
        contents: the files before the rewrite.
    """

    def __init__(self, contents: Mapping[Path, bytes]) -> None:
        self._contents = {path.resolve(): data for path, data in contents.items()}
        self._first: dict[Path, dict[Note, Mapping[Path, bytes]]] = defaultdict(dict)
        self._origins: dict[tuple[Path, bytes], Mapping[int, tuple[int, int]]] = {}

    def reported(self, path: Path, file: FileRewrite, known: Mapping[Path, bytes]) -> None:
        """Record what a turn reports of `path`, which knows its neighbors with the content `known`.

        Neighbors that are not in `known` are as before the rewrite.
        """
        resolved = {other.resolve(): data for other, data in known.items()}
        for note in (*file.edits, *file.findings, *file.hints):
            self._first[path].setdefault(note, resolved)

    def at_origin(self, path: Path, file: FileRewrite) -> FileRewrite:
        """Return `file`, as it was reported last, with the lines of its neighbors before the rewrite."""

        def moved(notes: Iterable[Note]) -> tuple[Note, ...]:
            return tuple(self._note_at_origin(path, note) for note in notes)

        return replace(
            file, edits=moved(file.edits), findings=moved(file.findings), hints=moved(file.hints)
        )

    def _note_at_origin(self, path: Path, note: Note) -> Note:
        known = self._first[path][note]
        if not known:
            return note
        message, wrong = (
            Message.of(text).moved(lambda related: self._origin(related, known))
            for text in (note.message, note.wrong)
        )
        return replace(note, message=message, wrong=wrong)

    def _origin(self, related: Related, known: Mapping[Path, bytes]) -> Related:
        """Return the original line of a line in another file."""
        path = related.path.resolve() if related.path is not None else None
        if path is None or path not in self._contents:
            return related
        before, now = self._contents[path], known.get(path, self._contents[path])
        if (path, now) not in self._origins:
            texts = (data.decode(errors="replace").splitlines() for data in (before, now))
            self._origins[path, now] = origins(*texts)
        line, _ = self._origins[path, now].get(related.line, (related.line, 0))
        return replace(related, line=line)


def _lines(analysis: Analysis, path: Path) -> Lines:
    """Return the lines of the functions of a file."""
    if path not in analysis.scopes:
        return {}
    times: Counter[tuple[str, str]] = Counter()
    lines: dict[Key, int] = {}
    for function in analysis.scopes[path].functions:
        name = function.owner.name if function.owner is not None else "", function.name
        lines[*name, times[name]] = function.line
        times[name] += 1
    return lines

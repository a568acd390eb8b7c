"""Lines of a project's functions while its files are rewritten, turn by turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from migrate.model.calls.analysis import Analysis
from migrate.reading.project.reach import Leaving

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

"""The hazards of a rewritten folder that show only where its files are looked at together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from migrate.errors import MigrateError
from migrate.reading.calls.analysis import Analysis
from migrate.reading.calls.facts import ModuleCalls, calls_of_file
from migrate.reading.facts import Facts
from migrate.reading.project.entries import Entry
from migrate.reading.project.reach import Entries, Leaving, leaving, reached, starts
from migrate.reading.script import Script
from migrate.reading.tree.source import parse
from migrate.rewrite.after_rewrite import Left, Spoken, left_of, origins

Result = TypeVar("Result")


@dataclass(frozen=True)
class Look:
    """A file of the rewritten folder that is looked at with what other files' steps run in it.

    Args:
        path, name: the file, and how it is named to the user.
        before, after: its content.
        calls: what its calls run.
        entries: the functions, by the lines of their `def`, that steps of other files run.
        spoken: what has been reported of it, at the lines before.
    """

    path: Path
    name: str
    before: bytes
    after: bytes
    calls: ModuleCalls
    entries: Mapping[int, Entry]
    spoken: tuple[Spoken, ...] = field(default=())


class Run(Protocol):
    """Does some work for each of several files, in their order."""

    def __call__(self, work: Callable[[Look], Result], jobs: Sequence[Look], /) -> list[Result]:
        """Return what `work` gives for each of `jobs`."""


def left_in_functions(
    analysis: Analysis,
    before: Mapping[Path, bytes],
    spoken: Mapping[Path, Sequence[Spoken]],
    folder: Path,
    run: Run,
) -> dict[Path, tuple[Left, ...]]:
    """Return what is left to do in functions that the steps of other files run, by file.

    Args:
        analysis: the rewritten folder.
        before: the content of its files before the rewrite.
        spoken: what has been reported of them.
        folder: the folder.
        run: does some work for each file, in their order.
    """
    calls = {path: calls_of_file(analysis, path) for path in analysis.scopes}

    def looks(paths: Sequence[Path], entries: Entries) -> list[Look]:
        return [
            Look(
                path,
                path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.name,
                before.get(path, analysis.scopes[path].module.data),
                analysis.scopes[path].module.data,
                calls[path],
                entries.get(path, {}),
                tuple(spoken.get(path, ())),
            )
            for path in paths
        ]

    first = [path for path in starts(analysis, calls) if path in before]
    entries = reached(first, lambda paths, known: run(leaving_of, looks(paths, known)))
    found = run(left_in, looks(list(entries), entries))
    return dict(zip(entries, found, strict=True))


def leaving_of(look: Look) -> tuple[Leaving, ...]:
    """Return the functions of other files that the steps of a file run; told at the lines before."""
    facts = _facts(look)
    if facts is None:
        return ()
    origin = origins(_lines(look.before), _lines(look.after))

    def at_origin(line: int) -> int:
        near = max((one for one in origin if one <= line), default=line)
        return origin[near][0] if near in origin else line

    return tuple(leaving(facts, look.name, at_origin))


def left_in(look: Look) -> tuple[Left, ...]:
    """Return what is left to do in the functions of a file that other files' steps run."""
    facts = _facts(look)
    if facts is None:
        return ()
    told = {(line, rule) for line, _, rule, _ in look.spoken}
    text = look.before.decode(errors="replace")
    left = left_of(facts, text, look.spoken, whole=False)
    return tuple(one for one in left if (one.line, one.code) not in told)


def _facts(look: Look) -> Facts | None:
    try:
        return Facts(Script(parse(look.after, look.path), look.calls), look.entries)
    except MigrateError:
        return None  # reported where the file itself is rewritten


def _lines(data: bytes) -> list[str]:
    return data.decode(errors="replace").splitlines()

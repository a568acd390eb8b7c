"""Terminal view and JSON of `migrate rewrite FOLDER`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from migrate.counts import many
from migrate.report.text.findings import Findings, WrittenFile, count, written_file
from migrate.report.text.in_tests import count_in_tests
from migrate.report.text.rewrite import finding_as_json, needs, note_as_json
from migrate.report.text.tables import plain_table
from migrate.rewrite.results import START_WITH_PYTHON, FolderRewrite, Note
from migrate.syntax.notebook.text import SUFFIX

if TYPE_CHECKING:
    from rich.console import RenderableType


def folder_summary(done: FolderRewrite, written: Path | None) -> Iterator[RenderableType]:
    """Yield the report of a folder: files, rewrites by rule, findings, and what to do by hand in order.

    Args:
        done: the rewrite.
        written: where it was written; None if nothing was.
    """
    target = f" → {escape(str(written))}" if written not in (None, done.folder) else ""
    yield f"[bold]{escape(str(done.folder))}{target}[/bold]"
    notebooks = sum(file.name.suffix == SUFFIX for file in done.changed)
    yield _counted("Python file", done.scripts, len(done.changed) - notebooks)
    if done.notebooks:
        yield _counted("notebook", len(done.notebooks), notebooks)
    if done.edits_by_rule or done.findings_by_rule:
        yield from _rules(done)
        if written not in (None, done.folder) and done.edits_by_rule:
            yield (
                f"[dim]each edit with its line: migrate rewrite {escape(str(done.folder))} --diff, "
                "or --json[/dim]"
            )
    if done.problems:
        files = many(len(done.problems), "file")
        yield f"[red]{files} could not be rewritten, left unchanged[/red]"
        yield from (f"  {escape(file.problem)}" for file in done.problems)
    if done.outside_tests:
        notes = [note for _, note in done.outside_tests]
        order = ", in the order in which to fix them" if len(notes) > 1 else ""
        yield f"[yellow]{count(notes)}{order}[/yellow]"
        yield Findings(
            [(str(done.folder / name), note) for name, note in done.outside_tests],
            _written(done, written),
        )
    for file in done.changed:
        for note in file.edits:
            # A docstring or comment says otherwise, and stays: the edits themselves are not listed here.
            if START_WITH_PYTHON in note.message:
                yield escape(
                    f"{file.name}: {START_WITH_PYTHON}{note.message.partition(START_WITH_PYTHON)[2]}"
                )
    if done.in_tests:
        yield count_in_tests([name for name, _ in done.in_tests])
    if written is not None:
        yield from dict.fromkeys(
            line for file in done.changed for line in needs(file.after, written)
        )


def _written(done: FolderRewrite, to: Path | None) -> dict[str, WrittenFile]:
    """Return the written files with findings, by the paths of their originals."""
    named = {name for name, _ in done.outside_tests}
    return {
        str(done.folder / file.name): written_file(to / file.name, file.before, file.after)
        for file in done.changed
        if to is not None and file.name in named and file.name.suffix == ".py"
    }


def _counted(what: str, count: int, rewritten: int) -> str:
    return f"{many(count, what)}: {rewritten} rewritten, {count - rewritten} unchanged"


def _rules(done: FolderRewrite) -> Iterator[RenderableType]:
    table = plain_table("rule", "edits", "findings left")
    names = list(dict.fromkeys([*done.edits_by_rule, *done.findings_by_rule]))
    for name in names:
        edits, findings = done.edits_by_rule.get(name, 0), done.findings_by_rule.get(name, 0)
        table.add_row(name, str(edits), str(findings))
    yield table


def folder_as_json(done: FolderRewrite, written: Path | None) -> dict[str, Any]:
    """Return the same as plain values; paths are in the folder."""
    return {
        "folder": str(done.folder),
        "written": str(written) if written else None,
        "python_files": done.scripts,
        "files": [
            {
                "path": str(file.name),
                "changed": file.changed,
                "problem": file.problem or None,
                "edits": [note_as_json(note) for note in file.edits],
            }
            for file in done.files
            if file.changed or file.problem
        ],
        "notebooks": [str(name) for name in done.notebooks],
        "edits_by_rule": done.edits_by_rule,
        "findings_by_rule": done.findings_by_rule,
        "left_to_do": [_finding(name, note) for name, note in done.outside_tests],
        "hints": [_finding(file.name, note) for file in done.files for note in file.hints],
        "in_tests": [_finding(name, note) for name, note in done.in_tests],
    }


def _finding(name: Path, note: Note) -> dict[str, Any]:
    return {"path": str(name), **finding_as_json(note)}

"""Terminal view and JSON of `migrate rewrite`."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from migrate.counts import many
from migrate.report.text.findings import Findings, WrittenFile, count, written_file
from migrate.report.text.tables import plain_table
from migrate.rewrite.left.codes import code_of
from migrate.rewrite.results import Note, Rewrite

if TYPE_CHECKING:
    from rich.console import RenderableType

PACKAGE = "tpu-migrate"  # has `shims`


def rewrite_summary(
    done: Rewrite, written: Path | None, beside: Collection[Path] = ()
) -> Iterator[RenderableType]:
    """Yield what was done to one script and what is left to do by hand.

    Args:
        done: the rewrite.
        written: where it was written; None if nothing was.
        beside: the scripts that the same command rewrites.
    """
    name = escape(str(done.path))
    if done.unread:
        yield f"[red]{name}: some of its imports could not be read[/red]"
        yield from (f"  {escape(why)}" for why in done.unread)
    if not done.changed and not done.findings:
        yield f"{name}: nothing to migrate"
        return
    if done.changed:
        target = f" → {escape(str(written))}" if written else ""
        yield f"[bold]{name}{target}[/bold]: {many(len(done.edits), 'edit')}"
        yield _edits(done.edits)
    yield from findings_summary(done, written)
    if done.changed and written:
        yield from needs(done.data, written.parent)
    known = {path.resolve() for path in beside}
    if others := [path for path in done.elsewhere if path.resolve() not in known]:
        files = escape(", ".join(path.name for path in others))
        yield (
            f"{name}: it imports {files}, which may need edits too. To rewrite the whole folder: "
            f"migrate rewrite {escape(str(_folder_of([done.path, *others])))} -o COPY"
        )


def _folder_of(files: Sequence[Path]) -> Path:
    """Return the folder that has all of `files`: as the first one names its own, where that is it."""
    folder = Path(os.path.commonpath([file.resolve().parent for file in files]))
    own = files[0].parent
    return own if own.resolve() == folder else Path(os.path.relpath(folder))


def findings_summary(done: Rewrite, written: Path | None = None) -> Iterator[RenderableType]:
    """Yield what is left to do by hand in one script; nothing where nothing is."""
    before = "" if done.changed else "nothing to rewrite, "
    files = {}
    if written is not None and done.changed and done.findings and written.suffix == ".py":
        files = {str(done.path): written_file(written, done.source.data, done.data)}
    yield from findings_of_files([(str(done.path), note) for note in done.findings], before, files)


def needs(written: bytes, folder: Path) -> Iterator[str]:
    """Yield a line on the packages that a rewritten file imports, if it uses `shims`.

    Args:
        written: content of the rewritten file.
        folder: its folder, whose requirements.txt is read.
    """
    if not re.search(rb"^import shims$", written, re.M):
        return
    listed = folder / "requirements.txt"
    missing = [PACKAGE]
    if listed.is_file():
        text = listed.read_text(errors="replace")
        missing = [name for name in (PACKAGE, "torch_xla") if not _names(name, text)]
    if missing:
        names = " and ".join(missing)
        to_do = f"add {names} to {listed}" if listed.is_file() else f"install {names} where it runs"
        yield f"the rewrite imports shims: {escape(to_do)}"


def _names(package: str, requirements: str) -> bool:
    pattern = re.escape(package).replace("_", "[-_]").replace(r"\-", "[-_]")
    return re.search(rf"^\s*{pattern}\b", requirements, re.M | re.I) is not None


def findings_of_files(
    findings: Sequence[tuple[str, Note]],
    before: str = "",
    written: Mapping[str, WrittenFile] | None = None,
    most: int | None = None,
    rest: str = "",
) -> Iterator[RenderableType]:
    """Yield what is left to do by hand in the files of a project; nothing where nothing is.

    Args:
        findings: findings with the paths of their files.
        before: words before how many there are.
        written: the files that were written, by the paths of the originals.
        most: number of findings to show. None: all.
        rest: the command that shows all findings.
    """
    if findings:
        names = list(dict.fromkeys(name for name, _ in findings))
        title = names[0] if len(names) == 1 else many(len(names), "file")
        yield f"[yellow]{escape(title)}: {before}{count([note for _, note in findings])}[/yellow]"
        yield Findings(list(findings[:most]), written or {})
        if most is not None and len(findings) > most:
            yield escape(f"… and {many(len(findings) - most, 'more finding')}: {rest}")


def _edits(edits: Sequence[Note]) -> Table:
    table = plain_table()
    table.add_column(justify="right", style="cyan", no_wrap=True)
    table.add_column(style="magenta", no_wrap=True)
    table.add_column(overflow="fold")
    for note in edits:
        line = f"{note.line}" if note.cell is None else note.place
        table.add_row(f"  {line}", note.rule, escape(note.message))
    return table


def rewrite_as_json(done: Rewrite, written: Path | None) -> dict[str, Any]:
    """Return the same as plain values."""
    return {
        "path": str(done.path),
        "changed": done.changed,
        "written": str(written) if written and done.changed else None,
        "edits": [note_as_json(note) for note in done.edits],
        "findings": [finding_as_json(note) for note in done.findings],
        "hints": [finding_as_json(note) for note in done.hints],
        "unread": list(done.unread),
    }


def note_as_json(note: Note) -> dict[str, Any]:
    """Return an edit or finding as plain values; `cell` is present for a cell of a notebook."""
    values = {**dataclasses.asdict(note), "code": code_of(note)}
    for name in ("severity", "withdrawn", "is_hint", "own_code", "subject"):
        del values[name]
    if note.cell is None:
        del values["cell"]
    return values


def finding_as_json(note: Note) -> dict[str, Any]:
    """Return a finding as plain values; of severity "info" are those with which the script stands."""
    return {
        **note_as_json(note),
        "severity": note.severity.value,
        "subject": note.subject or None,
    }

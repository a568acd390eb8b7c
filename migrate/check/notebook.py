"""Find the hazards of a Jupyter notebook: in its cells as one script, and in the scripts that cells write."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from migrate.check.check import check_context
from migrate.check.config import Config
from migrate.check.finding import UNREADABLE, Finding
from migrate.check.hazard import Severity
from migrate.model.facts import ModuleCalls
from migrate.reading.script import Script
from migrate.syntax.notebook.cells import Cells, join
from migrate.syntax.notebook.text import Notebook, written_scripts
from migrate.syntax.source import NotPythonError, parse

NAME = "not-python"


def check_notebook(
    notebook: Notebook, config: Config, calls: ModuleCalls | None = None
) -> tuple[Finding, ...]:
    """Return the hazards of a notebook, in the order of its cells. Lines are lines of cells.

    Args:
        notebook: the parsed notebook.
        config: which hazards are reported.
        calls: functions that its calls run, if its project is already analyzed.
    """
    cells = join(notebook)
    context = Script(parse(cells.code.encode(), notebook.path), calls)
    findings = [_in_cell(finding, cells) for finding in check_context(context, config)]
    if config.selects(UNREADABLE):
        findings += _unread(cells)
    for cell, script in written_scripts(notebook):
        above = cell.source.count("\n") - script.count("\n")
        try:
            written = Script(parse(script.encode(), notebook.path.parent / f"{cell.number}.py"))
        except NotPythonError as error:
            if config.selects(UNREADABLE):
                why = error.what.rpartition(": ")[2]
                findings.append(_unreadable(notebook.path, cell.number, above + 1, 1, why))
            continue
        for finding in check_context(written, config):
            line, end = finding.line + above, finding.end_line + above
            findings.append(
                replace(finding, path=notebook.path, line=line, end_line=end, cell=cell.number)
            )
    placed = [_in_file(finding, notebook) for finding in findings]
    return tuple(
        sorted(
            placed,
            key=lambda finding: (finding.cell or 0, finding.line, finding.column, finding.code),
        )
    )


def _in_cell(finding: Finding, cells: Cells) -> Finding:
    number, line = cells.place(finding.line)
    message = cells.in_words(finding.message)
    return replace(finding, line=line, end_line=line, cell=number, message=message)


def _unread(cells: Cells) -> Iterator[Finding]:
    for cell in cells.unread:
        yield _unreadable(cells.notebook.path, cell.number, cell.line, cell.column, cell.why)


def _unreadable(path: Path, number: int, line: int, column: int, why: str) -> Finding:
    text = f"{why}: nothing in this cell is checked"
    return Finding(
        path, line, column, line, column + 1, UNREADABLE, NAME, Severity.ERROR, text, number
    )


def _in_file(finding: Finding, notebook: Notebook) -> Finding:
    """Return the finding with the line of the file, for tools that show the file of a notebook as text."""
    assert finding.cell is not None
    return replace(finding, file_line=notebook.file_line(finding.cell, finding.line))

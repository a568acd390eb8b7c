"""Output of `migrate check`: text, JSON, GitHub annotations. SARIF has its own file."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import click

from migrate.check.finding import Finding, Fix
from migrate.check.hazard import Severity
from migrate.check.project import Checked
from migrate.counts import many
from migrate.report.text.in_tests import count_in_tests
from migrate.report.text.sarif import check_as_sarif

COLORS = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}
MARKS = {Fix.NONE: "", Fix.SAFE: " [*]", Fix.UNSAFE: " [*unsafe]"}
# GitHub's names of the severities.
ANNOTATIONS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}


def check_lines(checked: Checked, form: str) -> Iterator[str]:
    """Yield what is printed: `form` is text, json, sarif or github."""
    if form == "github":
        yield from check_as_github(checked)
    elif form == "sarif":
        yield json.dumps(check_as_sarif(checked), indent=2)
    elif form == "json":
        yield json.dumps(check_as_json(checked), indent=2)
    else:
        yield from check_summary(checked)


def check_summary(checked: Checked) -> Iterator[str]:
    """Yield a line for each finding, and one that counts them."""
    for hit in checked.findings:
        code = click.style(f"{hit.code} {hit.severity}", fg=COLORS[hit.severity])
        yield f"{hit.path}:{hit.place}: {code}{MARKS[hit.fix]} {hit.text}"
    yield click.style(_counted(checked), bold=True)
    if more := _in_imported(checked):
        yield more
    if checked.in_tests:
        yield count_in_tests([finding.path for finding in checked.in_tests])


def _counted(checked: Checked) -> str:
    files = many(checked.files, "file")
    if checked.imported:
        files += f" ({checked.imported} imported)"
    if not checked.findings:
        return f"No hazards in {files}"
    times = Counter(hit.severity for hit in checked.findings)
    words = {
        Severity.ERROR: ("error", "errors"),
        Severity.WARNING: ("warning", "warnings"),
        Severity.INFO: ("info", "infos"),
    }
    counts = [f"{times[hit]} {words[hit][times[hit] != 1]}" for hit in Severity if times[hit]]
    concerned = len({hit.path for hit in checked.findings})
    summary = f"{', '.join(counts)} in {concerned} of {files}"
    fixes = Counter(hit.fix for hit in checked.findings if hit.fix is not Fix.NONE)
    fix = f"; [*] `migrate rewrite` fixes {many(fixes.total(), 'finding')}" if fixes else ""
    if unsafe := fixes[Fix.UNSAFE]:
        fix += f", {unsafe} of them [*unsafe]: {_conditions(checked)}"
    return f"{summary}{fix}; explain a code with `migrate check --explain CODE`"


def _in_imported(checked: Checked) -> str:
    """Return where errors are that a check of single files does not list, and how to see them."""
    see = f"which the check of a single file leaves out. See all: migrate check {checked.folder}"
    if checked.unread:
        return f"{many(checked.unread, 'imported file')} may have more errors, {see}"
    if not checked.beside:
        return ""
    files = ", ".join(str(path) for path in checked.beside)
    return f"{many(sum(checked.beside.values()), 'more error')} in {files}, {see}"


def _conditions(checked: Checked) -> str:
    """Return under which conditions the unsafe fixes are right."""
    pairs = {(hit.code, hit.condition) for hit in checked.findings if hit.fix is Fix.UNSAFE}
    return "; ".join(f"{code} is right only if {condition}" for code, condition in sorted(pairs))


def check_as_json(checked: Checked) -> dict[str, Any]:
    """Return the same as plain values."""
    counts = Counter(hit.severity for hit in checked.findings)
    return {
        "files": checked.files,
        "more_errors": {str(path): errors for path, errors in checked.beside.items()},
        "counts": {severity.value: counts[severity] for severity in Severity},
        "mended_by_rewrite": sum(hit.fix is not Fix.NONE for hit in checked.findings),
        "findings": [_as_json(hit) for hit in checked.findings],
        "in_tests": [_as_json(hit) for hit in checked.in_tests],
        # The edits of a file, and of the files beside it, rest on one another: all of them, or none.
        "rewrites": {
            str(path): {"before": before, "after": after}
            for path, (before, after) in checked.rewritten.items()
        },
    }


def _as_json(hit: Finding) -> dict[str, Any]:
    values = {**dataclasses.asdict(hit), "path": str(hit.path), "severity": hit.severity.value}
    del values["is_shown"], values["subject"]
    values["fix"] = None if hit.fix is Fix.NONE else hit.fix.value
    if hit.cell is None:
        del values["cell"], values["file_line"]
    return values


def check_as_github(checked: Checked) -> Iterator[str]:
    """Yield the workflow commands with which GitHub annotates the lines of a pull request."""
    for hit in checked.findings:
        file, title = _property(str(hit.path)), _property(f"{hit.code} {hit.name}")
        where = (
            f"line={hit.line},col={hit.column},endLine={hit.end_line},endColumn={hit.end_column}"
        )
        message = _data(hit.text)
        if hit.cell is not None:  # annotations are at the lines of the file, which is JSON
            where, message = f"line={hit.file_line}", f"{hit.place}: {message}"
        yield f"::{ANNOTATIONS[hit.severity]} file={file},{where},title={title}::{message}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")

"""What `migrate check` shows: text, JSON, GitHub annotations; SARIF is in a file of its own."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import click

from migrate.check.finding import Finding
from migrate.check.hazard import Hazard, Severity
from migrate.check.project import Checked
from migrate.check.rules import all_hazards
from migrate.errors import MigrateError

COLOURS = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}
# GitHub's names of the severities.
ANNOTATIONS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}


class NoSuchHazardError(MigrateError):
    """There is no hazard of that code or name.

    Cause: a code after `--explain` that no hazard has.

    Remedy: `migrate check --explain list` names them all.
    """


def check_lines(checked: Checked, form: str) -> Iterator[str]:
    """Yield what is printed: `form` is text, json, sarif or github."""
    if form == "github":
        yield from check_as_github(checked)
    elif form == "sarif":
        from migrate.views.sarif import check_as_sarif

        yield json.dumps(check_as_sarif(checked), indent=2)
    elif form == "json":
        yield json.dumps(check_as_json(checked), indent=2)
    else:
        yield from check_summary(checked)


def check_summary(checked: Checked) -> Iterator[str]:
    """Yield a line for each finding, and one that counts them."""
    for one in checked.findings:
        code = click.style(f"{one.code} {one.severity}", fg=COLOURS[one.severity])
        yield f"{one.path}:{one.place}: {code} {one.message}"
    yield click.style(_counted(checked), bold=True)


def _counted(checked: Checked) -> str:
    files = f"{checked.files} file{'' if checked.files == 1 else 's'}"
    if not checked.findings:
        return f"No hazards in {files}"
    times = Counter(one.severity for one in checked.findings)
    words = {
        Severity.ERROR: ("error", "errors"),
        Severity.WARNING: ("warning", "warnings"),
        Severity.INFO: ("info", "infos"),
    }
    counts = [f"{times[one]} {words[one][times[one] != 1]}" for one in Severity if times[one]]
    concerned = len({one.path for one in checked.findings})
    return (
        f"{', '.join(counts)} in {concerned} of {files}; `migrate check --explain CODE` says more"
    )


def check_as_json(checked: Checked) -> dict[str, Any]:
    """Return the same as plain values."""
    counts = Counter(one.severity for one in checked.findings)
    return {
        "files": checked.files,
        "counts": {severity.value: counts[severity] for severity in Severity},
        "findings": [_as_json(one) for one in checked.findings],
    }


def _as_json(one: Finding) -> dict[str, Any]:
    values = {**dataclasses.asdict(one), "path": str(one.path), "severity": one.severity.value}
    if one.cell is None:
        del values["cell"], values["file_line"]
    return values


def check_as_github(checked: Checked) -> Iterator[str]:
    """Yield the workflow commands with which GitHub annotates the lines of a pull request."""
    for one in checked.findings:
        file, title = _property(str(one.path)), _property(f"{one.code} {one.name}")
        where = (
            f"line={one.line},col={one.column},endLine={one.end_line},endColumn={one.end_column}"
        )
        message = _data(one.message)
        if one.cell is not None:  # annotations are at the lines of the file, which is JSON
            where, message = f"line={one.file_line}", f"{one.place}: {message}"
        yield f"::{ANNOTATIONS[one.severity]} file={file},{where},title={title}::{message}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def hazard_list() -> Iterator[str]:
    """Yield a line for each hazard: code, usual severity, name, title."""
    for hazard in all_hazards():
        yield f"{hazard.code}  {hazard.severity:<8} {hazard.name:<22} {hazard.title}"


def explanation(code: str) -> str:
    """Return the page of a hazard, by code or name; the list of them all for "list".

    Raises:
        NoSuchHazardError: there is none.
    """
    if code.lower() == "list":
        return "\n".join(hazard_list())
    for hazard in all_hazards():
        if code.upper() == hazard.code or code.lower() == hazard.name:
            return hazard_page(hazard)
    raise NoSuchHazardError(
        f"there is no hazard {code}", "`migrate check --explain list` names them all"
    )


def hazard_page(hazard: Hazard) -> str:
    """Return the Markdown page of `hazard`: what it is, why, what to do, examples."""
    _, _, body = inspect.cleandoc(hazard.__doc__ or "").partition("\n")
    parts = [
        f"# {hazard.code} {hazard.name}: {hazard.title}",
        f"Severity: {hazard.severity.value}. Silence one line with `# migrate: ignore[{hazard.code}]`.",
        body.strip(),
    ]
    marked = [bool(one.expected(hazard.code, hazard.severity)) for one in hazard.examples]
    sections = {
        "Reported": [one for one, found in zip(hazard.examples, marked, strict=True) if found],
        "Mended": [hazard.mended],
        "Left alone": [
            one for one, found in zip(hazard.examples, marked, strict=True) if not found
        ],
    }
    for heading, shown in sections.items():
        parts.append(f"## {heading}")
        parts.extend(f"```python\n{one.script}```" for one in shown)
    return "\n\n".join(parts) + "\n"

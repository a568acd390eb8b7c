"""The findings of `migrate check` as SARIF 2.1.0, which code hosts and editors read."""

from __future__ import annotations

from collections.abc import Container, Iterator
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any
from urllib.parse import quote

from migrate.check.finding import UNREADABLE, UNUSED_IGNORE, Finding, Fix
from migrate.check.hazard import Severity
from migrate.check.project import Checked
from migrate.check.rules import all_hazards
from migrate.report.text.explained import described, explanation
from migrate.rewrite.left.codes import NOTEBOOK, UNHANDLED
from migrate.versions import versions

SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
# They have no page.
UNEXPLAINED = (UNREADABLE, UNUSED_IGNORE, UNHANDLED, NOTEBOOK)
LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


def check_as_sarif(checked: Checked, root: Path | None = None) -> dict[str, Any]:
    """Return one SARIF log with one run; the paths are relative to `root`, the working folder."""
    rules = _rules({hit.code for hit in checked.findings})
    index = {rule["id"]: number for number, rule in enumerate(rules)}
    base = (root or Path.cwd()).resolve()
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "migrate check",
                        "version": str(versions()["tpu-migrate"]),
                        "rules": rules,
                    }
                },
                "originalUriBaseIds": {"SRCROOT": {"uri": f"{base.as_uri()}/"}},
                "columnKind": "unicodeCodePoints",
                "results": list(_results(checked, index, base)),
            }
        ],
    }


def _results(checked: Checked, index: dict[str, int], base: Path) -> Iterator[dict[str, Any]]:
    """Yield the findings; the first of a file that is mended has the fix: all edits of the file."""
    left = dict(checked.rewritten)
    for hit in checked.findings:
        result = _result(hit, index, base)
        if hit.fix is not Fix.NONE and hit.path in left:
            artifact = result["locations"][0]["physicalLocation"]["artifactLocation"]
            changes = list(_replacements(*left.pop(hit.path)))
            text = "migrate rewrite: all edits of this file; those of other files belong to it"
            change = {"artifactLocation": artifact, "replacements": changes}
            result["fixes"] = [{"description": {"text": text}, "artifactChanges": [change]}]
        yield result


def _replacements(before: str, after: str) -> Iterator[dict[str, Any]]:
    """Yield what is replaced of a file, whole lines."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    for kind, start, end, first, last in SequenceMatcher(None, old, new, False).get_opcodes():
        if kind != "equal":
            region = {"startLine": start + 1, "startColumn": 1, "endLine": end + 1, "endColumn": 1}
            content = {"text": "".join(new[first:last])}
            yield {"deletedRegion": region, "insertedContent": content}


def _rules(reported: Container[str]) -> list[dict[str, Any]]:
    """Return all rules, with their pages those that are `reported`."""
    own = [
        _rule(
            UNREADABLE,
            "not-python",
            "The file is not Python 3, cannot be read, or is not rewritten.",
            Severity.ERROR,
        ),
        _rule(UNUSED_IGNORE, "unused-ignore", "A comment silences nothing.", Severity.INFO),
    ]
    for hazard in all_hazards():
        own.append(_rule(hazard.code, hazard.name, hazard.title, hazard.severity))
    known = {rule["id"] for rule in own}
    for code, (name, title, severity) in described().items():
        if code not in known:
            own.append(_rule(code, name, title, severity))
    for rule in own:
        if rule["id"] in reported and rule["id"] not in UNEXPLAINED:
            page = explanation(rule["id"])
            rule["help"] = {"text": page, "markdown": page}
    return own


def _rule(code: str, name: str, title: str, severity: Severity) -> dict[str, Any]:
    return {
        "id": code,
        "name": name,
        "shortDescription": {"text": title},
        "defaultConfiguration": {"level": LEVELS[severity]},
    }


def _result(hit: Finding, index: dict[str, int], base: Path) -> dict[str, Any]:
    path = hit.path.resolve()
    location: dict[str, Any] = {"uri": path.as_uri()}
    if path.is_relative_to(base):
        relative = quote(path.relative_to(base).as_posix())
        location = {"uri": relative, "uriBaseId": "SRCROOT"}
    region = {
        "startLine": hit.line,
        "startColumn": hit.column,
        "endLine": hit.end_line,
        "endColumn": hit.end_column,
    }
    text: str = hit.text
    place: dict[str, Any] = {}
    if hit.cell is not None and hit.file_line is not None:
        # The region is in the file, which is JSON; the cell is told in words.
        region = {"startLine": hit.file_line}
        text = f"{hit.place}: {hit.text}"
        place = {"logicalLocations": [{"fullyQualifiedName": hit.place}]}
    physical = {"artifactLocation": location, "region": region}
    return {
        "ruleId": hit.code,
        "ruleIndex": index[hit.code],
        "level": LEVELS[hit.severity],
        "message": {"text": text},
        "locations": [{"physicalLocation": physical, **place}],
        "properties": {"fix": hit.fix.value},  # whether `migrate rewrite` mends it
    }

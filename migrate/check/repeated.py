"""Findings that repeat in a file, reported once with the first of their lines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from migrate.check.finding import Finding
from migrate.syntax.origins import Message

# A message that occurs more often in a file is reported once, with the first of its lines.
MOST_ALIKE = 5
SHOWN = 5


def without_repetition(findings: Iterable[Finding]) -> list[Finding]:
    """Return `findings` with one finding for each message that a file repeats."""
    groups: dict[tuple[object, ...], list[Finding]] = defaultdict(list)
    for finding in findings:
        message = finding.message.removeprefix(f"{finding.subject}: ")
        groups[
            finding.path, finding.code, finding.severity, finding.fix, message, finding.caller
        ].append(finding)
    kept: list[Finding] = []
    for group in groups.values():
        if len(group) <= MOST_ALIKE:
            kept += group
            continue
        places = ", ".join(
            finding.place if finding.cell is not None else str(finding.line)
            for finding in group[:SHOWN]
        )
        more = f"{len(group)} times in this file: {places}, \N{HORIZONTAL ELLIPSIS}"
        kept.append(replace(group[0], message=Message.of(group[0].message).ended(f" ({more})")))
    return sorted(kept, key=_place)


def _place(finding: Finding) -> tuple[int, int, int, str]:
    return finding.cell or 0, finding.line, finding.column, finding.code

"""Group findings for a reader: repeated findings of a file count once, those of tests are apart."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path, PurePath

from migrate.check.finding import Finding

# A message that occurs more often in a file is reported once, with the first of its lines.
MOST_ALIKE = 5
SHOWN = 5
_TEST_FOLDERS = frozenset({"test", "tests"})
_TEST_FILE = re.compile(r"test_.*|.*_test|conftest")
# What a file of tests holds: functions and classes of tests, or what tests are written with.
_OF_TESTS = re.compile(
    rb"^\s*(?:(?:async\s+)?def test|class Test|(?:import|from) (?:pytest|unittest)\b)", re.MULTILINE
)
_MAIN = re.compile(rb"^if __name__ ==", re.MULTILINE)


def without_repetition(findings: Iterable[Finding]) -> list[Finding]:
    """Return `findings` with one for each group of many in a file that say the same of different lines."""
    groups: dict[tuple[object, ...], list[Finding]] = defaultdict(list)
    for finding in findings:
        message = finding.message.removeprefix(f"{finding.subject}: ")
        groups[finding.path, finding.code, finding.severity, finding.fix, message].append(finding)
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
        kept.append(replace(group[0], message=f"{group[0].message} ({more})"))
    return sorted(kept, key=_place)


def _place(finding: Finding) -> tuple[int, int, int, str]:
    return finding.cell or 0, finding.line, finding.column, finding.code


def is_test(path: Path, named: Sequence[Path]) -> bool:
    """Whether a file is one of a project's tests, below a folder that the user named.

    A file that the user named is checked like any other, and so are all files of a folder of tests. A script
    that is run and holds no test is none, whatever its name: `run_test.py` with a `__main__` guard.

    Args:
        path: the file.
        named: the files and folders that the user named.
    """
    if path in named:
        return False
    for folder in named:
        if path.is_relative_to(folder):
            if not _TEST_FOLDERS.isdisjoint(folder.resolve().parts[-1:]):
                return False
            return _is_test(path, path.relative_to(folder))
    return _is_test(path, PurePath(path.name))


def _is_test(path: Path, below: PurePath) -> bool:
    if not _TEST_FOLDERS.isdisjoint(below.parts[:-1]):
        return True
    return _TEST_FILE.fullmatch(below.stem) is not None and not _is_plain_script(path)


def _is_plain_script(path: Path) -> bool:
    """Whether `path` is a script that is run, and holds no test."""
    try:
        text = path.read_bytes()
    except OSError:
        return False
    return _MAIN.search(text) is not None and _OF_TESTS.search(text) is None

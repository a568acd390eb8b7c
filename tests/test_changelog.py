"""The changelog: one line a change, versions with dates, newest first."""

from __future__ import annotations

import re
from pathlib import Path

CHANGELOG = (Path(__file__).parents[1] / "CHANGELOG.md").read_text()
KINDS = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
_, _, BODY = CHANGELOG.partition("## [Unreleased]")


def test_a_change_is_one_short_line() -> None:
    lines = [line for line in BODY.splitlines() if line and not line.startswith("#")]
    assert [line for line in lines if not line.startswith("- ") or len(line) > 200] == []


def test_changes_stand_under_a_version_and_a_kind() -> None:
    headings = re.findall(r"^(#+) (.*)$", BODY, re.MULTILINE)
    assert {text for marks, text in headings if marks == "###"} <= set(KINDS)
    versions = [text for marks, text in headings if marks == "##"]
    found = [re.fullmatch(r"\[(\d+)\.(\d+)\.(\d+)\] - \d{4}-\d\d-\d\d", text) for text in versions]
    assert all(found)
    numbers = [tuple(map(int, match.groups())) for match in found if match]
    assert numbers == sorted(numbers, reverse=True)

"""The line on findings in a project's tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from migrate.counts import many


def count_in_tests(files: Sequence[Path]) -> str:
    """Return the line on the findings in tests, given the test file of each."""
    return (
        f"{len(files)} more in {many(len(set(files)), 'test file')}, which set no exit code; "
        "name the folder of the tests to list them"
    )

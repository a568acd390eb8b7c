"""Test files of a project: by folder, by name and by content."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path, PurePath

_TEST_FOLDERS = frozenset({"test", "tests"})
_TEST_FILE = re.compile(r"test_.*|.*_test|conftest")
# Marks of a file of tests: test functions, test classes, imports of pytest or unittest.
_OF_TESTS = re.compile(
    rb"^\s*(?:(?:async\s+)?def test|class Test|(?:import|from) (?:pytest|unittest)\b)", re.MULTILINE
)
_MAIN = re.compile(rb"^if __name__ ==", re.MULTILINE)


def is_test(path: Path, named: Sequence[Path]) -> bool:
    """Whether a file is one of a project's tests, below a folder that the user named.

    A file that the user named is no test, and neither are the files in a folder of tests that the user named.
    A script with a `__main__` guard and without tests is no test, whatever its name: `run_test.py`.

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
    """Whether `path` is a script with a `__main__` guard and without tests."""
    try:
        text = path.read_bytes()
    except OSError:
        return False
    return _MAIN.search(text) is not None and _OF_TESTS.search(text) is None

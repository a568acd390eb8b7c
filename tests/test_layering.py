"""Imports go one way: migrate → converters, migrate → shims; only migrate/cli prints or exits."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FORBIDDEN = {
    "converters": {"migrate", "shims"},
    "shims": {"migrate", "converters"},
}
FILES = [
    path
    for package in ("migrate", "converters", "shims")
    for path in (ROOT / package).rglob("*.py")
]


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module


@pytest.mark.parametrize("package", sorted(FORBIDDEN))
def test_imports_go_one_way(package: str) -> None:
    paths = list((ROOT / package).rglob("*.py"))
    assert paths
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in paths
        for name in imported(path)
        if name.split(".")[0] in FORBIDDEN[package]
    ]
    assert wrong == []


COMMAND_LINES = ("migrate/cli/", "shims/__main__.py")
# These run inside the user's program and end it as the launcher of torch_xla would, or keep it from
# running without the shims that it was to have.
END_THE_USERS_PROGRAM = {"shims/_launch.py", "shims/_site/sitecustomize.py"}


def test_only_cli_prints_and_exits() -> None:
    wrong = []
    for path in FILES:
        name = str(path.relative_to(ROOT))
        for node in ast.walk(ast.parse(path.read_bytes())):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            raised = ast.unparse(node.exc) if isinstance(node, ast.Raise) and node.exc else ""
            ends = raised.startswith("SystemExit") and name not in END_THE_USERS_PROGRAM
            if called in ("sys.exit", "exit", "quit", "print") or ends:
                wrong.append(f"{name}:{node.lineno}")
    assert [place for place in wrong if not place.startswith(COMMAND_LINES)] == []


# A folder is a room that one sees at a glance. These are still to be divided.
MOST_FILES = 18
CROWDED = {
    "converters/checkpoint",
    "migrate/check/rules/meaning",
    "migrate/parity",
    "migrate/parity/causes",
    "migrate/parity/sides",
    "migrate/prove",
    "shims",
    "shims/patches",
}


def test_no_room_is_crowded() -> None:
    files = [path for path in FILES if path.name != "__init__.py"]
    rooms = Counter(str(path.parent.relative_to(ROOT)) for path in files)
    assert {room for room, count in rooms.items() if count > MOST_FILES} == CROWDED

"""Imports go one way, between packages, between rooms and between files; only migrate/cli prints or exits."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.import_graph import circles, imports

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


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(path.read_bytes())))


def imported(path: Path) -> Iterator[str]:
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


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


# What each room of migrate may import beside itself and BELOW_ALL; docs/architecture.md says why.
BELOW_ALL = {"errors", "units", "versions"}
MAY_IMPORT = {
    "cli": {"report", "rewrite", "check", "reading", "prove", "parity", "observe"}
    | {"devices", "doctor"},
    "report": {"rewrite", "check", "reading", "prove", "parity", "observe", "devices", "doctor"},
    "rewrite": {"check", "reading"},
    "check": {"reading"},
    "reading": set(),
    "prove": {"observe", "process"},
    "parity": {"compiler", "process"},
    "observe": set(),
    "compiler": {"process"},
    "devices": {"process"},
    "process": set(),
    "doctor": set(),
    **{name: set() for name in BELOW_ALL},
}


def room(name: str) -> str:
    """Return the room of migrate in which the module `name` lies; empty for migrate itself."""
    return f"{name}.".split(".")[1]


def test_rooms_of_migrate_import_what_stands_below_them() -> None:
    wrong = []
    for path in (ROOT / "migrate").rglob("*.py"):
        name = str(path.relative_to(ROOT))
        here = room(module_of(path))
        for target in imported(path):
            if not target.startswith("migrate.") or target == "migrate.__version__":
                continue
            there = room(target)
            allowed = MAY_IMPORT.get(here, set()) | BELOW_ALL | {here}
            if there not in allowed:
                wrong.append(f"{name} imports {target}: {here} stands beside or below {there}")
    assert wrong == []


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


# The rooms of parity, too: each may import those before it.
ROOMS_OF_PARITY = (
    *("ground", "dump", "inputs", "judge", "emulate", "sides", "align", "causes", "tasks", "run"),
    "compare",
)
# Asked for in the process that holds the model, when it is asked: both stand above the sides.
ASKED = {
    ("migrate.parity.sides.protocol", "migrate.parity.causes"),
    ("migrate.parity.sides.jax.runner", "migrate.parity.tasks.topk"),
}


def test_rooms_of_parity_import_those_below_them() -> None:
    def floor(name: str) -> int:
        return ROOMS_OF_PARITY.index(name.split(".")[2])

    found = imports(ROOT / "migrate" / "parity", root=ROOT)
    wrong = [
        f"{name} imports {other}"
        for name, others in found.items()
        for other in others - {"migrate.parity"}
        if name != "migrate.parity" and floor(other) > floor(name) and (name, other) not in ASKED
    ]
    assert sum(map(len, found.values())) > 100
    assert wrong == []


# One module of each circle that is still to be opened.
STILL_CLOSED = {
    "shims.batch_norm",
    "shims.patches.assemble",
}


@pytest.mark.parametrize("package", ["migrate", "converters", "shims"])
def test_no_import_leads_back(package: str) -> None:
    """Neither at the top, nor in a function, nor for types alone: a circle cannot be read from below."""
    found = imports(ROOT / package)
    closed = [group for group in circles(found) if STILL_CLOSED.isdisjoint(group)]
    shown = [
        f"{name} → {', '.join(sorted(found[name] & set(group)))}"
        for group in closed
        for name in group
    ]
    assert shown == [], f"{len(closed)} circles"


COMMAND_LINES = ("migrate/cli/", "shims/__main__.py")
# These run inside the user's program and end it as the launcher of torch_xla would, or keep it from
# running without the shims that it was to have.
END_THE_USERS_PROGRAM = {"shims/_launch.py", "shims/_site/sitecustomize.py"}


def test_only_cli_prints_and_exits() -> None:
    wrong = []
    for path in FILES:
        name = str(path.relative_to(ROOT))
        for node in nodes(path):
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
    "shims",
    "shims/patches",
}


def test_no_room_is_crowded() -> None:
    files = [path for path in FILES if path.name != "__init__.py"]
    rooms = Counter(str(path.parent.relative_to(ROOT)) for path in files)
    assert {room for room, count in rooms.items() if count > MOST_FILES} == CROWDED

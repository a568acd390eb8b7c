"""Imports go one way, between packages, between rooms and between files; only migrate/cli prints or exits."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from functools import cache
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
# Rooms that are to become one.
STILL_APART = {"views": "report", "pages": "report"}
STILL_WRONG = {"migrate/parity/tasks/topk.py": "check"}


def room(name: str) -> str:
    """Return the room of migrate in which the module `name` lies; empty for migrate itself."""
    first = f"{name}.".split(".")[1]
    return STILL_APART.get(first, "devices" if first.startswith("devices_") else first)


def test_rooms_of_migrate_import_what_stands_below_them() -> None:
    wrong = []
    for path in (ROOT / "migrate").rglob("*.py"):
        name = str(path.relative_to(ROOT))
        here = room(module_of(path))
        for target in imported(path):
            if not target.startswith("migrate.") or target == "migrate.__version__":
                continue
            there = room(target)
            allowed = MAY_IMPORT.get(here, set()) | BELOW_ALL | {here, STILL_WRONG.get(name)}
            if there not in allowed:
                wrong.append(f"{name} imports {target}: {here} stands beside or below {there}")
    assert wrong == []


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


# One module of each circle that is still to be opened.
STILL_CLOSED = {
    "converters.mapping.plan",
    "converters.output.write",
    "migrate.parity.explain",
    "migrate.parity.inputs_spec",
    "migrate.parity.sides.torch_runner",
    "migrate.views.check",
    "shims.batch_norm",
    "shims.patches.assemble",
}


def circles(imports: Mapping[str, Set[str]]) -> Iterator[list[str]]:
    """Yield the groups of modules that lead back to themselves, each found from one of its modules."""
    reached = {name: reachable(name, imports) for name in imports}
    seen: set[str] = set()
    for name in sorted(imports):
        if name in reached[name] and name not in seen:
            group = [other for other in sorted(reached[name]) if name in reached[other]]
            seen.update(group)
            yield group


def reachable(start: str, imports: Mapping[str, Set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for name in imports[waiting.pop()]:
            if name not in found:
                found.add(name)
                waiting.append(name)
    return found


def test_no_import_leads_back() -> None:
    """Neither at the top, nor in a function, nor for types alone: a circle cannot be read from below."""
    modules = {module_of(path): path for path in FILES}
    imports = {}
    for name, path in modules.items():
        targets = {one if one in modules else one.rpartition(".")[0] for one in imported(path)}
        imports[name] = (targets & modules.keys()) - {name}
    closed = [group for group in circles(imports) if STILL_CLOSED.isdisjoint(group)]
    shown = [
        f"{name} → {', '.join(sorted(imports[name] & set(group)))}"
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
    "migrate/parity",
    "migrate/reading/calls",
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

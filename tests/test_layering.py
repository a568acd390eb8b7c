"""Imports go one way, between packages, between rooms and between files; only migrate/cli prints or exits."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

from tests.import_graph import circles, imported, imports

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


@pytest.mark.parametrize("package", sorted(FORBIDDEN))
def test_imports_go_one_way(package: str) -> None:
    found = imported(ROOT / package)
    assert found
    wrong = [
        f"{module} imports {name}"
        for module, names in found.items()
        for name in names
        if name.split(".")[0] in FORBIDDEN[package]
    ]
    assert wrong == []


# What each room of migrate may import beside itself and BELOW_ALL; docs/architecture.md says why.
BELOW_ALL = {"counts", "draws", "errors", "progress", "units", "versions", "written"}
STATIC = {"reading", "model", "catalogue", "syntax"}  # what is known of scripts, from above
MAY_IMPORT = {
    "__main__": {"cli"},
    "cli": STATIC
    | {"report", "rewrite", "check", "prove", "parity", "observe"}
    | {"devices", "doctor", "port", "fit", "assess", "launch", "train"},
    "report": STATIC
    | {"rewrite", "check", "prove", "parity", "observe", "devices", "doctor"}
    | {"port", "fit", "assess", "launch", "train"},
    "train": {
        *("prove", "port", "parity", "model", "catalogue", "syntax", "place", "process"),
        "quick_xla",
    },
    "launch": {"catalogue", "model", "syntax", "fit"},
    "assess": STATIC | {"rewrite", "check", "prove", "observe", "fit", "place"},
    "rewrite": STATIC | {"check"},
    "check": STATIC,
    "reading": {"model", "catalogue", "syntax"},
    "model": {"catalogue", "syntax"},
    "catalogue": {"syntax"},
    "syntax": set(),
    "port": {"parity", "place", "process"},
    "fit": {"compiler", "parity", "place", "process", "quick_xla"},
    "prove": {"catalogue", "observe", "place", "process", "quick_xla"},
    "parity": {"compiler", "process", "quick_xla"},
    "observe": set(),
    "compiler": {"process"},
    "devices": {"process"},
    "place": set(),
    "process": set(),
    "quick_xla": set(),
    "doctor": {"gpus"},
    "gpus": set(),
    **{name: set() for name in BELOW_ALL},
}


def room(name: str) -> str:
    """Return the room of migrate in which the module `name` lies; empty for migrate itself."""
    return f"{name}.".split(".")[1]


def test_rooms_of_migrate_import_what_stands_below_them() -> None:
    wrong = []
    for module, targets in imports(ROOT / "migrate").items():
        here = room(module)
        for target in targets - {"migrate"}:
            there = room(target)
            if there not in MAY_IMPORT.get(here, set()) | BELOW_ALL | {here}:
                wrong.append(f"{module} imports {target}: {here} stands beside or below {there}")
    assert wrong == []


# The rooms of parity, too: each may import those before it.
ROOMS_OF_PARITY = (
    *(
        "ground",
        "dump",
        "inputs",
        "judge",
        "emulate",
        "sides",
        "align",
        "fitting",
        "causes",
        "tasks",
        "run",
    ),
    "compare",
)
# Asked for in the process that holds the model, when it is asked: both stand above the sides.
ASKED = {
    ("migrate.parity.sides.protocol", "migrate.parity.causes"),
    ("migrate.parity.sides.protocol", "migrate.parity.fitting.search"),
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


@pytest.mark.parametrize("package", ["migrate", "converters", "shims"])
def test_no_import_leads_back(package: str) -> None:
    """Neither at the top, nor in a function, nor for types alone: a circle cannot be read from below."""
    found = imports(ROOT / package)
    closed = circles(found)
    shown = [
        f"{name} → {', '.join(sorted(found[name] & set(group)))}"
        for group in closed
        for name in group
    ]
    assert shown == [], f"{len(closed)} circles"


# The last one runs on the hosts of a job.
COMMAND_LINES = (
    *("migrate/cli/", "migrate/launch/host/__main__.py"),
    *("shims/__main__.py", "shims/_started/__main__.py"),
)
# These run inside the user's program and end it as the launcher of torch_xla would, or keep it from
# running without the shims that it was to have. The last one is part of a written program.
END_THE_USERS_PROGRAM = {
    "shims/_simulated/launch.py",
    "shims/_site/sitecustomize.py",
    "migrate/train/write/program/checkpoints.py",
}


def test_only_cli_prints_and_exits() -> None:
    wrong = []
    for path in FILES:
        name = str(path.relative_to(ROOT))
        for node in nodes(path):
            match node:
                case ast.Call(ast.Name("exit" | "quit" | "print")):
                    wrong.append(f"{name}:{node.lineno}")
                case ast.Call(ast.Attribute(ast.Name("sys"), "exit")):
                    wrong.append(f"{name}:{node.lineno}")
                case ast.Raise(ast.Name("SystemExit") | ast.Call(ast.Name("SystemExit"))):
                    if name not in END_THE_USERS_PROGRAM:
                        wrong.append(f"{name}:{node.lineno}")
    assert [place for place in wrong if not place.startswith(COMMAND_LINES)] == []


@pytest.mark.parametrize("package", ["migrate", "converters", "shims"])
def test_folders_are_layers(package: str) -> None:
    """What lies in a folder may use the folder's own modules, and these what lies in it."""
    assert circles(_folders(imports(ROOT / package))) == []


def _folders(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return the folders that the modules of each folder import, but for those around it or in it."""
    packages = {one for one in graph if (ROOT / one.replace(".", "/") / "__init__.py").exists()}

    def folder(module: str) -> str:
        return module if module in packages else module.rpartition(".")[0]

    found: dict[str, set[str]] = {folder(module): set() for module in graph}
    for module, others in graph.items():
        here = folder(module)
        asked = {other for one, other in ASKED if one == module}
        for other in others:
            there = folder(other)
            nested = f"{here}.".startswith(f"{there}.") or f"{there}.".startswith(f"{here}.")
            if not nested and other not in asked:
                found[here].add(there)
    return found

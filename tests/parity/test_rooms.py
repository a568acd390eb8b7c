"""The rooms of `migrate parity` stand one above the other, and no files import each other in a circle."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
# A room may import those before it.
ROOMS = (
    *("ground", "dump", "inputs", "judge", "emulate", "sides", "align", "causes", "tasks", "run"),
    "compare",
)
# Asked for in the process that holds the model, when it is asked: both stand above the sides.
ASKED = {
    ("migrate.parity.sides.protocol", "migrate.parity.causes"),
    ("migrate.parity.sides.jax.runner", "migrate.parity.tasks.topk"),
}
FREE_OF_CIRCLES = ("parity", "prove", "report", "devices", "compiler", "observe")


def modules() -> dict[str, Path]:
    found = {}
    for path in (ROOT / "migrate").rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imported(name: str) -> Iterator[str]:
    """The modules of ours that one imports: at its head, in functions, and for types alone."""
    for node in ast.walk(ast.parse(MODULES[name].read_bytes())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [one if one in MODULES else node.module for one in inner]
        yield from (one for one in names if one in MODULES and one != name)


def test_a_room_imports_only_those_below_it() -> None:
    wrong = []
    for name in MODULES:
        for other in imported(name) if name.startswith("migrate.parity.") else ():
            own = name.split(".")[2]
            theirs = other.split(".")[2] if other.startswith("migrate.parity.") else ""
            if theirs and ROOMS.index(theirs) > ROOMS.index(own) and (name, other) not in ASKED:
                wrong.append(f"{name} imports {other}")
    assert wrong == []


def test_nothing_below_the_commands_imports_what_stands_above() -> None:
    above = ("cli", "report", "rewrite", "hazards", "check", "reading")
    wrong = [
        f"{name} imports {other}"
        for name in MODULES
        if name.split(".")[1:2] and name.split(".")[1] in {*FREE_OF_CIRCLES, "process"} - {"report"}
        for other in imported(name)
        if other.split(".")[1:2] and other.split(".")[1] in above
    ]
    assert wrong == []


def test_no_files_import_each_other_in_a_circle() -> None:
    rooms = tuple(f"migrate.{room}" for room in FREE_OF_CIRCLES)
    left = {name: set(imported(name)) for name in MODULES if name.startswith(rooms)}
    # Who imports none of those that are left is in no circle.
    while free := [name for name, others in left.items() if not others & left.keys()]:
        for name in free:
            del left[name]
    assert left == {}

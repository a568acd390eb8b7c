"""Sort the remaining manual work of a project."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from migrate.check.hazard import Severity
from migrate.model.calls.order import callees_first
from migrate.model.project.project import Project
from migrate.rewrite.results import Note
from migrate.rewrite.rule import Stage
from migrate.rewrite.rules import rules_by_name

if TYPE_CHECKING:
    from migrate.rewrite.results import FileRewrite


def in_order(files: Sequence[FileRewrite], project: Project) -> tuple[tuple[Path, Note], ...]:
    """Return the findings of `files` in the order in which to fix them.

    What is only to be looked at comes last. Of the rest, first come findings that keep the replicas from
    starting, then those that keep a step from running. Within each group, a module comes before the files
    that import it.
    """
    places = _imported_first(project)
    root = project.root or Path()
    entries = [(file.name, note) for file in files for note in file.findings]

    def key(entry: tuple[Path, Note]) -> tuple[bool, int, int, str, int, int, int]:
        name, note = entry
        rule = rules_by_name().get(note.rule)
        stage = Stage.REST if rule is None else rule.stage
        place = places.get(root / name, len(places))
        to_look_at = note.severity is Severity.INFO
        return to_look_at, stage, place, str(name), note.cell or 0, note.line, note.column

    return tuple(sorted(entries, key=key))


def _imported_first(project: Project) -> dict[Path, int]:
    imports = {
        path: dict.fromkeys(project.imports(module)) for path, module in project.modules.items()
    }
    order = (path for group in callees_first(imports) for path in sorted(group))
    return {path: number for number, path in enumerate(order)}

"""What the rewrite leaves by hand of the files that a script runs, and whether every run of it meets that."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from migrate.assess.found import Code, Todo
from migrate.check.hazard import Severity
from migrate.model.project.project import Project
from migrate.rewrite.left.work import work_of
from migrate.rewrite.results import FolderRewrite

_CONDITIONAL = (
    *(ast.If, ast.Try, ast.TryStar, ast.Match, ast.While, ast.For),
    *(ast.FunctionDef, ast.AsyncFunctionDef),
)


def code_of(done: FolderRewrite, script: Path) -> Code:
    """What is left to do by hand.

    Args:
        done: the rewrite of the project.
        script: the one that trains; it lies in the project.
    """
    root = done.folder.resolve()
    project = Project.of_script(script, root=root)
    reached = set(project.modules) | set(project.unread)
    always = _always(project, script.resolve())
    todo, elsewhere = [], 0
    for name, note in done.left_to_do:
        path = root / name
        if path not in reached:
            elsewhere += 1
            continue
        todo.append(
            Todo(
                f"{name}:{note.place}",
                note.rule,
                note.message,
                work_of(note),
                note.severity is Severity.INFO,
                path in always and note.line in always[path],
            )
        )
    return Code(
        files=done.scripts + len(done.notebooks),
        rewritten=len(done.changed),
        edits=sum(done.edits_by_rule.values()),
        reached=len(reached),
        todo=tuple(todo),
        elsewhere=elsewhere,
        unread=tuple(one.problem for one in done.problems if root / one.name in reached),
    )


def _always(project: Project, script: Path) -> dict[Path, set[int]]:
    """Of each module that every run of the script imports, the lines that run then."""
    found: dict[Path, set[int]] = {}
    waiting = [script]
    while waiting:
        path = waiting.pop()
        module = project.modules.get(path)
        if path in found or module is None:
            continue
        statements = list(_unconditional(module.tree.body))
        found[path] = {
            line for one in statements for line in range(one.lineno, (one.end_lineno or 0) + 1)
        }
        imports = (one for one in statements if isinstance(one, ast.Import | ast.ImportFrom))
        waiting.extend(project.imported_by(path, imports))
    return found


def _unconditional(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module that run whenever it does, those of blocks that always run among them."""
    for one in body:
        main = isinstance(one, ast.If) and "__name__" in ast.unparse(one.test)
        if isinstance(one, ast.With) or (isinstance(one, ast.If) and main):
            yield from _unconditional(one.body)
        elif not isinstance(one, _CONDITIONAL):
            yield one

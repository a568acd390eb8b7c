"""Find the manual work in the files that a script runs, and whether every run of the script meets it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from migrate.assess.facts import Code, Todo
from migrate.check.hazard import Severity
from migrate.model.project.project import Project
from migrate.rewrite.left.manual_work import work_of
from migrate.rewrite.results import FolderRewrite

_CONDITIONAL = (
    *(ast.If, ast.Try, ast.TryStar, ast.Match, ast.While, ast.For),
    *(ast.FunctionDef, ast.AsyncFunctionDef),
)


def code_of(done: FolderRewrite, script: Path) -> Code:
    """Return the manual work that remains.

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
        unread=tuple(file.problem for file in done.problems if root / file.name in reached),
    )


def _always(project: Project, script: Path) -> dict[Path, set[int]]:
    """Return for each module that every run of the script imports the lines that run then."""
    lines: dict[Path, set[int]] = {}
    waiting = [script]
    while waiting:
        path = waiting.pop()
        module = project.modules.get(path)
        if path in lines or module is None:
            continue
        statements = list(_unconditional(module.tree.body))
        lines[path] = {
            line
            for statement in statements
            for line in range(statement.lineno, (statement.end_lineno or 0) + 1)
        }
        imports = (
            statement
            for statement in statements
            if isinstance(statement, ast.Import | ast.ImportFrom)
        )
        waiting.extend(project.imported_by(path, imports))
    return lines


def _unconditional(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module that run whenever it does, those of blocks that always run among them."""
    for statement in body:
        main = isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test)
        if isinstance(statement, ast.With) or (isinstance(statement, ast.If) and main):
            yield from _unconditional(statement.body)
        elif not isinstance(statement, _CONDITIONAL):
            yield statement

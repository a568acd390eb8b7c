"""Rewrite one file, a script or a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from migrate.model.facts import AnalyzedProject
from migrate.rewrite.notebook import rewrite_notebook
from migrate.rewrite.options import DEFAULT, RewriteOptions
from migrate.rewrite.pipeline import rewrite
from migrate.rewrite.results import Rewrite
from migrate.syntax.interpreter import deep, seldom_collected
from migrate.syntax.notebook.text import SUFFIX, read_notebook


@seldom_collected()
@deep
def rewrite_file(
    path: Path, options: RewriteOptions = DEFAULT, projects: Sequence[AnalyzedProject] = ()
) -> Rewrite:
    """Return the rewritten form of the script or notebook at `path`, without writing it.

    Args:
        path: the file.
        options: the form of the output.
        projects: projects that are already analyzed.

    Raises:
        UnreadableScriptError, NotUtf8Error, NotPythonError, InvalidNotebookError: the file cannot be read.
        RuleConflictError, NotStableError: a defect of the rules.
    """
    if path.suffix == SUFFIX:
        return rewrite_notebook(read_notebook(path), options=options)
    return rewrite(path, options=options, projects=projects)

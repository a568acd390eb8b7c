"""Find the hazards of one file: a script or a notebook."""

from __future__ import annotations

from pathlib import Path

from migrate.check.check import ProjectFacts, check_script
from migrate.check.config import Config
from migrate.check.finding import UNREADABLE, Finding
from migrate.check.hazard import Severity
from migrate.check.notebook import check_notebook
from migrate.check.prescan import is_handed_hazards, may_hold_hazards
from migrate.errors import MigrateError
from migrate.syntax.interpreter import deep
from migrate.syntax.notebook.text import (
    SUFFIX,
    InvalidNotebookError,
    NoCodeError,
    parse_notebook,
)
from migrate.syntax.source import (
    NotPythonError,
    NotUtf8Error,
    UnreadableScriptError,
    decoded,
    require_python,
)


@deep
def check_file(
    path: Path, config: Config, known: ProjectFacts | None = None
) -> tuple[Finding, ...]:
    """Return the hazards of the file at `path`. A file without names that matter is not parsed.

    A file that is not Python 3 is a finding too.

    Raises:
        UnreadableScriptError: the file cannot be read.
    """
    known = known or ProjectFacts()
    data = _content(path)
    if not known.entries and not may_hold_hazards(data) and not is_handed_hazards(known.calls):
        return ()
    if path.suffix == SUFFIX:
        return _check_notebook(data, path, config, known)
    try:
        return check_script(path, data, config, known)
    except (NotPythonError, NotUtf8Error) as error:
        return not_checked(path, error, config) if known.whole else ()


def check_readable(path: Path, config: Config) -> tuple[Finding, ...]:
    """Return the finding for a script that is not Python 3. Nothing else is checked.

    Raises:
        UnreadableScriptError: the file cannot be read.
    """
    data = _content(path)
    if path.suffix == SUFFIX:
        return ()
    try:
        decoded(data, path)
        require_python(data, path)
    except (NotPythonError, NotUtf8Error) as error:
        return not_checked(path, error, config)
    return ()


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        what = f"{path}: {(error.strerror or str(error)).lower()}"
        raise UnreadableScriptError(what, "check the path and its permissions") from None


def _check_notebook(
    data: bytes, path: Path, config: Config, known: ProjectFacts
) -> tuple[Finding, ...]:
    try:
        notebook = parse_notebook(data, path)
    except NoCodeError:
        return ()  # a page of text
    except (InvalidNotebookError, NotUtf8Error) as error:
        return not_checked(path, error, config)
    return check_notebook(notebook, config, known.calls)


def not_checked(
    path: Path, error: MigrateError, config: Config, severity: Severity = Severity.ERROR
) -> tuple[Finding, ...]:
    """Return the finding that a file is not checked, with the reason; empty if its code is not selected."""
    if not config.selects(UNREADABLE):
        return ()
    line, column, message = 1, 1, error.what.removeprefix(f"{path}:").strip()
    parts = message.split(":", 2)
    if len(parts) == 3 and parts[0].isdigit() and parts[1].isdigit():
        line, column, message = int(parts[0]), int(parts[1]), parts[2].strip()
    elif len(parts) > 1 and parts[0].isdigit():
        line, message = int(parts[0]), message.partition(":")[2].strip()
    text = f"{message}: nothing in this file is checked"
    name = "not-python"
    return (Finding(path, line, column, line, column + 1, UNREADABLE, name, severity, text),)

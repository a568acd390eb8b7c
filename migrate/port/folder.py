"""The folder of a port: there whole or not at all, and never over edits of the user's."""

from __future__ import annotations

import contextlib
import hashlib
import json
import keyword
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from migrate.port.errors import EditedError, PortError
from migrate.written import RECORD

_VERSION = 1
# What Python and its tools leave in a folder when it is used.
_LEFT = {"__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".ipynb_checkpoints"}


def port_name(chosen: str | None, proposed: str) -> str:
    """The name of the folder, which is that of a Python package.

    Args:
        chosen: name from the user. None: the name of the model.
        proposed: a name of any form: `all-MiniLM-L6-v2`, `BertModel`.

    Raises:
        PortError: the user's is no name of a package.
    """
    if chosen is not None:
        if not chosen.isidentifier() or keyword.iskeyword(chosen):
            raise PortError(f"--name {chosen}: cannot be imported", "letters, digits and _ only")
        return chosen
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", proposed)
    name = re.sub(r"\W+", "_", words).strip("_").lower()
    if not name or keyword.iskeyword(name):
        return f"{name}_port".strip("_")
    return name if name.isidentifier() else f"port_{name}"


def edits(folder: Path) -> tuple[str, ...]:
    """The files of a port that are no longer as they were written, or have come since.

    A folder without a record was not written by `migrate port`: all of it is the user's.
    """
    now = {
        str(path.relative_to(folder)): path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not _LEFT & set(path.relative_to(folder).parts)
    }
    record = now.pop(RECORD, None)
    try:
        was: dict[str, str] = json.loads(record.read_text())["files"] if record else {}
    except (ValueError, KeyError, TypeError, OSError):
        was = {}
    return tuple(name for name, path in now.items() if was.get(name) != _digest(path))


def require_place(folder: Path, force: int) -> tuple[str, ...]:
    """Find out, before any work, whether the folder can be written.

    Args:
        folder: the port's.
        force: how often `--force` was said: once, an earlier port may be replaced; twice, edits too.

    Returns:
        The edited files that will be lost.

    Raises:
        PortError: the folder exists already, or its parent cannot be made.
        EditedError: the folder has edits.
    """
    for above in (folder.parent, *folder.parent.parents):
        if above.exists():
            if not above.is_dir():
                raise PortError(f"{above}: is a file", "choose another -o")
            break
    if not folder.exists():
        return ()
    if not folder.is_dir():
        raise PortError(f"{folder}: is a file", "choose another -o or --name")
    lost = edits(folder)
    if lost and force < 2:
        raise EditedError(str(folder), lost)
    if not force:
        raise PortError(
            f"{folder}: already exists", "overwrite it with --force, or choose another -o"
        )
    return lost


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[Path]:
    """A folder beside the port's to write into, which takes its place when all of it went well.

    Raises:
        PortError: the disk refuses.
    """
    temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.tmp")
    try:
        created = _make(folder.parent)
        temporary.mkdir()
    except OSError as error:
        raise PortError(
            f"{folder}: cannot be written ({error.strerror})", "choose another -o"
        ) from None
    try:
        yield temporary
        _clear(temporary)
        _take_the_place(temporary, folder)
        created = []
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        for empty in created:
            with contextlib.suppress(OSError):
                empty.rmdir()


def record(folder: Path, target: str) -> tuple[str, ...]:
    """Record the contents of the folder, so that edits are noticed later. Return the file names."""
    _clear(folder)
    files = {
        str(path.relative_to(folder)): _digest(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != RECORD
    }
    value = {"format": _VERSION, "target": target, "files": files}
    (folder / RECORD).write_text(json.dumps(value, indent=1) + "\n")
    return tuple(files)


def _make(folder: Path) -> list[Path]:
    """Make a folder and those above it; the new ones, the innermost first."""
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    return new


def _clear(folder: Path) -> None:
    for path in sorted(folder.rglob("*")):
        if path.name in _LEFT:
            shutil.rmtree(path, ignore_errors=True)


def _take_the_place(temporary: Path, folder: Path) -> None:
    if not folder.exists():
        temporary.replace(folder)
        return
    old = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.old")
    folder.replace(old)
    try:
        temporary.replace(folder)
    except BaseException:
        old.replace(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

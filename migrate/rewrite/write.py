"""Write a rewritten script: beside the original by default, atomically, never over what is not ours."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from converters.checkpoint.atomic import atomic_write
from migrate.errors import MigrateError
from migrate.rewrite.engine import Rewrite


class NotWritableError(MigrateError):
    """The rewritten script cannot be written there.

    Cause: the file or its folder is read-only, or the folder does not exist.

    Remedy: change its permissions, or name another file with `-o`.
    """


class WouldOverwriteError(MigrateError):
    """A file with other content is already there.

    Cause: an earlier run wrote it and it was edited since, or it is another script of yours.

    Remedy: name another file with `-o`, or overwrite it with `--force`.
    """


def beside(path: Path) -> Path:
    """Return where the rewritten form of the script at `path` goes: `train.py` → `train_xla.py`."""
    return path.with_name(f"{path.stem}_xla{path.suffix}")


def write(rewrite: Rewrite, to: Path, *, force: bool = False) -> bool:
    """Write the rewritten script to `to` with the original's permissions; return whether it was needed.

    Raises:
        NotWritableError: the file or its folder is read-only or missing.
        WouldOverwriteError: another file is there, and `force` is not given.
        OutputError: the disk refuses.
    """
    check_target(rewrite, to, force=force)
    if to.exists() and to.read_bytes() == rewrite.data:
        return False
    mode = stat.S_IMODE(rewrite.path.stat().st_mode)
    with atomic_write(to, overwrite=True) as file:
        file.write(rewrite.data)
        os.fchmod(file.fileno(), mode | stat.S_IWUSR)
    return True


def check_target(rewrite: Rewrite, to: Path, *, force: bool) -> None:
    """Raise what `write` would raise, as far as it can be known before writing."""
    if to.is_dir():
        raise NotWritableError(f"{to}: is a directory", "name a file with -o")
    if not to.parent.is_dir():
        raise NotWritableError(f"{to.parent}: no such folder", "make it first")
    if not to.exists():
        return
    if not to.stat().st_mode & stat.S_IWUSR:
        raise NotWritableError(
            f"{to}: is read-only", "change its permissions, or name another file with -o"
        )
    same_file = to.samefile(rewrite.path)
    if not same_file and not force and to.read_bytes() != rewrite.data:
        raise WouldOverwriteError(
            f"{to}: is already there with other content",
            "name another file with -o, or pass --force",
        )

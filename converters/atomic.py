"""Atomic writing of files: a file is complete or missing."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from converters.errors import OutputError


@contextmanager
def atomic_write(path: Path, *, overwrite: bool) -> Iterator[BinaryIO]:
    """Open a file for writing that takes the name `path` only when it is complete and on disk.

    The file is written beside the target under a hidden temporary name (`.NAME.….tmp`). An
    exception deletes it; a kill leaves at most that temporary file.

    Raises:
        OutputError: the target exists and may not be overwritten, or the disk refuses.
    """
    require_writable(path, overwrite=overwrite)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        try:
            with temporary.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            # The target may have been created meanwhile: check again just before renaming.
            require_writable(path, overwrite=overwrite)
            temporary.replace(path)
            sync_folder(path.parent)
        except OSError as error:
            raise OutputError(
                f"{path} cannot be written ({error.strerror or error})", "choose another output"
            ) from error
    finally:
        with suppress(OSError):  # already renamed, or never created
            temporary.unlink()


def require_writable(path: Path, *, overwrite: bool) -> None:
    """Check before any work whether `path` can be an output.

    Raises:
        OutputError: its folder is missing, it is a folder, or it exists and may not be overwritten.
    """
    # os.path returns False where pathlib raises (for a name that is too long); opening then reports
    # why.
    if not os.path.isdir(path.parent):
        raise OutputError(f"the folder {path.parent} does not exist", "create it first")
    if os.path.isdir(path):
        raise OutputError(f"{path} is a folder", "name a file")
    if os.path.exists(path) and not overwrite:
        raise OutputError(
            f"{path} exists already", "name another output, or overwrite it (--force)"
        )


def sync_folder(folder: Path) -> None:
    """Sync the folder: without this, a power cut may undo the rename."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""Writing a file so that it is there whole or not at all."""

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
    """A file to write, which takes the name `path` only when it is complete and on disk.

    It is written beside the target under a hidden temporary name (`.NAME.….tmp`), which is deleted
    if anything is raised; a kill leaves at most that temporary file.

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
            # Someone may have made the target meanwhile: ask again just before taking its name.
            require_writable(path, overwrite=overwrite)
            temporary.replace(path)
            sync_folder(path.parent)
        except OSError as error:
            raise OutputError(
                f"{path} cannot be written ({error.strerror or error})", "choose another output"
            ) from error
    finally:
        with suppress(OSError):  # it has the target's name by now, or never came to be
            temporary.unlink()


def require_writable(path: Path, *, overwrite: bool) -> None:
    """Find out before any work whether `path` can be an output.

    Raises:
        OutputError: its folder is missing, it is a folder, or it exists and may not be overwritten.
    """
    # os.path answers no where pathlib raises (a name too long); opening then says why.
    if not os.path.isdir(path.parent):
        raise OutputError(f"the folder {path.parent} does not exist", "create it first")
    if os.path.isdir(path):
        raise OutputError(f"{path} is a folder", "name a file")
    if os.path.exists(path) and not overwrite:
        raise OutputError(
            f"{path} exists already", "name another output, or overwrite it (--force)"
        )


def sync_folder(folder: Path) -> None:
    """Put the new name itself on disk: without it a power cut may undo the rename."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

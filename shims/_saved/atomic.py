"""Files on local disk or behind an fsspec URL, written completely or not at all."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from shims.errors import ShimError

# Temporary file left behind by a writer that was killed.
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{8}\.tmp")


class FileError(ShimError):
    """A file could not be written, read or listed.

    Remedy: the message says what is missing: a folder, a permission, space, the file itself, or
    the package that reads this kind of URL (`fsspec`, with `gcsfs` for `gs://`).
    """


def is_url(path: str | os.PathLike[str]) -> bool:
    """Whether `path` is for fsspec (`gs://…`) instead of the local disk."""
    return "://" in os.fspath(path) and not os.fspath(path).startswith("file://")


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file for writing that takes the name `path` only when it is complete and stored.

    The file is written beside the target under a hidden temporary name (`.NAME.….tmp`). An
    exception deletes it; a kill leaves at most that temporary file. An existing target stays
    readable until it is replaced.

    Raises:
        FileError: the folder is missing, or the disk or the remote store refuses.
    """
    with _explained(path, "written"), (_remote if is_url(path) else _local)(path) as file:
        yield file


@contextmanager
def _local(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    target = _local_path(path)
    temporary = target.with_name(_temporary_name(target.name))
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
        _sync_folder(target.parent)
    finally:
        with suppress(OSError):  # already renamed, or never created
            temporary.unlink()


@contextmanager
def _remote(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    # An object store publishes a file when it is closed, even after an error. Only the temporary
    # name may be closed early.
    store, target = _store(path)
    folder, _, name = target.rpartition("/")
    temporary = f"{folder}/{_temporary_name(name)}"
    try:
        with store.open(temporary, "wb") as file:
            yield file
        store.mv(temporary, target)
    finally:
        with suppress(OSError):
            if store.exists(temporary):
                store.rm(temporary)


@contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a local path to the file: the file itself, or a temporary copy of a URL's content.

    Raises:
        FileError: there is no such file, or it cannot be read.
    """
    if not is_url(path):
        with _explained(path, "read"):
            # Opening the file distinguishes a missing file from a missing permission.
            _local_path(path).open("rb").close()
        yield _local_path(path)
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        with _explained(path, "read"):
            store, source = _store(path)
            with store.open(source, "rb") as remote, copy.open("wb") as file:
                shutil.copyfileobj(remote, file)
        yield copy


def make_folder(folder: str | os.PathLike[str]) -> None:
    """Create a folder and its parents, if missing."""
    with _explained(folder, "made"):
        if is_url(folder):
            store, path = _store(folder)
            store.makedirs(path, exist_ok=True)
        else:
            _local_path(folder).mkdir(parents=True, exist_ok=True)


def names_in(folder: str | os.PathLike[str]) -> list[str]:
    """Return the sorted names of the files in a folder; an empty list if the folder is missing."""
    with _explained(folder, "listed"):
        if not is_url(folder):
            path = _local_path(folder)
            return sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []
        store, remote = _store(folder)
        # Another machine may have written since the listing was cached.
        store.invalidate_cache(remote)
        if not store.exists(remote):
            return []
        return sorted(
            entry.rstrip("/").rpartition("/")[2] for entry in store.ls(remote, detail=False)
        )


def remove(folder: str | os.PathLike[str], name: str) -> None:
    """Delete one file of a folder, if it exists."""
    with _explained(folder, "cleaned"), suppress(FileNotFoundError):
        if is_url(folder):
            store, remote = _store(folder)
            store.rm(f"{remote}/{name}")
        else:
            (_local_path(folder) / name).unlink()


def join(folder: str | os.PathLike[str], name: str) -> str:
    """Return the path or URL of a file in a folder."""
    return f"{os.fspath(folder).rstrip('/')}/{name}"


def is_temporary(name: str) -> bool:
    """Whether a file name is a temporary name of `atomic_write`."""
    return _TEMPORARY.fullmatch(name) is not None


def _temporary_name(name: str) -> str:
    return f".{name}.{secrets.token_hex(4)}.tmp"


def _local_path(path: str | os.PathLike[str]) -> Path:
    return Path(os.fspath(path).removeprefix("file://"))


def _store(path: str | os.PathLike[str]) -> tuple[Any, str]:
    """Return the fsspec file system of a URL, and the path within it."""
    try:
        from fsspec.core import url_to_fs  # type: ignore[import-untyped]
    except ImportError as error:
        raise FileError(f"{path} needs fsspec", "pip install fsspec (gcsfs for gs://)") from error
    store, inside = url_to_fs(os.fspath(path))
    return store, inside.rstrip("/")


@contextlib.contextmanager
def _explained(path: str | os.PathLike[str], what: str) -> Iterator[None]:
    """Turn errors of a disk or a remote store into one line that names the path."""
    try:
        yield
    except (OSError, ImportError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise FileError(f"{path} cannot be {what} ({reason})", "check the path") from error


def _sync_folder(folder: Path) -> None:
    """Sync the folder: without this, a power cut may undo the rename."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

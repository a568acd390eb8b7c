"""Files on local disk or behind a URL of fsspec, written whole or not at all."""

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

# What a writer that was killed leaves behind.
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
    """A file to write, which takes the name `path` only when it is complete and stored.

    It is written beside the target under a hidden temporary name (`.NAME.….tmp`), which is deleted
    if anything is raised; a kill leaves at most that temporary file. An existing target is
    replaced, and stays readable and whole until then.

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
        with suppress(OSError):  # it has the target's name by now, or never came to be
            temporary.unlink()


@contextmanager
def _remote(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    # An object store shows what was written when the file is closed, also after an error: only the
    # temporary name may ever be closed early.
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
    """The file as a local one, for the time of the block: itself, or a copy of what the URL names.

    Raises:
        FileError: there is no such file, or it cannot be read.
    """
    if not is_url(path):
        with _explained(path, "read"):
            # Opened, as that is what tells a missing file from one without permission.
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
    """Make a folder with its parents; nothing happens where it is there."""
    with _explained(folder, "made"):
        if is_url(folder):
            store, path = _store(folder)
            store.makedirs(path, exist_ok=True)
        else:
            _local_path(folder).mkdir(parents=True, exist_ok=True)


def names_in(folder: str | os.PathLike[str]) -> list[str]:
    """The names of the files in a folder, sorted; none where the folder is not there."""
    with _explained(folder, "listed"):
        if not is_url(folder):
            path = _local_path(folder)
            return sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []
        store, remote = _store(folder)
        # Another machine may have written since a listing was cached.
        store.invalidate_cache(remote)
        if not store.exists(remote):
            return []
        return sorted(
            entry.rstrip("/").rpartition("/")[2] for entry in store.ls(remote, detail=False)
        )


def remove(folder: str | os.PathLike[str], name: str) -> None:
    """Delete one file of a folder; nothing happens where it is gone already."""
    with _explained(folder, "cleaned"), suppress(FileNotFoundError):
        if is_url(folder):
            store, remote = _store(folder)
            store.rm(f"{remote}/{name}")
        else:
            (_local_path(folder) / name).unlink()


def join(folder: str | os.PathLike[str], name: str) -> str:
    """The path or URL of a file in a folder."""
    return f"{os.fspath(folder).rstrip('/')}/{name}"


def is_temporary(name: str) -> bool:
    """Whether a file's name is one that `atomic_write` gives to what is not complete."""
    return _TEMPORARY.fullmatch(name) is not None


def _temporary_name(name: str) -> str:
    return f".{name}.{secrets.token_hex(4)}.tmp"


def _local_path(path: str | os.PathLike[str]) -> Path:
    return Path(os.fspath(path).removeprefix("file://"))


def _store(path: str | os.PathLike[str]) -> tuple[Any, str]:
    """The fsspec file system of a URL, and the path in it."""
    try:
        from fsspec.core import url_to_fs  # type: ignore[import-untyped]
    except ImportError as error:
        raise FileError(f"{path} needs fsspec", "pip install fsspec (gcsfs for gs://)") from error
    store, inside = url_to_fs(os.fspath(path))
    return store, inside.rstrip("/")


@contextlib.contextmanager
def _explained(path: str | os.PathLike[str], what: str) -> Iterator[None]:
    """What a disk or a store refuses, as one line that names the path."""
    try:
        yield
    except (OSError, ImportError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise FileError(f"{path} cannot be {what} ({reason})", "check the path") from error


def _sync_folder(folder: Path) -> None:
    """Put the new name itself on disk: without it a power cut may undo the rename."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

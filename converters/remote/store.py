"""Stores of files by key (a repository of a hub, a bucket, a server), and the sources in them."""

from __future__ import annotations

import posixpath
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from converters.checkpoint.source import ByteFile, RemoteSource
from converters.errors import CheckpointNotFoundError, RemoteError
from converters.remote.far_file import CONNECTIONS, FarFile
from converters.remote.retries import with_retries

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class StoredFile:
    """File of a store.

    Attributes:
        size: its size in bytes.
        version: the identity of the content (a generation, an ETag); "" if the store does not
            report one.
    """

    size: int
    version: str


class FileStore(ABC):
    """Store of files with `/`-joined keys.

    It can be sent to another process, together with the known facts about its files.

    Attributes:
        shown: the name in messages and records, without secrets.
        description: the interpretation of the name, for the user, or "".
    """

    shown: str
    description: str = ""

    def __init__(self) -> None:
        self._files: dict[str, ByteFile] = {}
        self._kept: dict[str, list[tuple[int, bytes]]] = {}
        self._used: dict[str, StoredFile] = {}
        self._lock = threading.RLock()

    @abstractmethod
    def entry(self, key: str) -> StoredFile | None:
        """Return the file of this key, or None.

        Raises:
            RemoteError: the other side refuses, or does not answer.
        """

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder ("" is the root), in order; [] if it cannot be
        listed."""

    @abstractmethod
    def fetch(self, key: str, entry: StoredFile, start: int, into: memoryview) -> None:
        """Read bytes of this version, in one request.

        Args:
            key: the key of the file.
            entry: the file, as returned by `entry`.
            start: the first byte.
            into: the memory to fill.

        Raises:
            TemporaryError: the request can be retried, also after too few bytes.
            RemoteError: the other side refuses, or has another version now.
        """

    def require_there(self, source: StoreSource) -> None:  # noqa: B027 (a hub has reported it already)
        """Check that something exists at or below a source.

        Raises:
            CheckpointNotFoundError: nothing exists there.
        """

    def changed(self) -> list[str]:
        """Return the keys of files that were read and have changed, as far as the store shows."""
        return []

    def opened(self, source: StoreSource) -> ByteFile:
        """Open the file of a source; all readers share one object.

        Raises:
            CheckpointNotFoundError: the file does not exist.
        """
        key = source.key
        entry = self.entry(key)
        if entry is None:
            raise CheckpointNotFoundError(f"{source} does not exist", "check the name")
        with self._lock:
            if key not in self._files:
                fetch = partial(self._persistently, source, entry)
                self._used[key] = entry
                self._files[key] = FarFile(source, entry.size, fetch, self._kept.get(key))
            return self._files[key]

    def _persistently(
        self, source: StoreSource, entry: StoredFile, start: int, into: memoryview
    ) -> None:
        with_retries(lambda: self.fetch(source.key, entry, start, into), source)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        kept = {key: file.kept for key, file in self._files.items() if isinstance(file, FarFile)}
        return state | {"_files": {}, "_kept": self._kept | kept, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = state
        self._lock = threading.RLock()


class StoreSource(RemoteSource):
    """File or folder of a store.

    Args:
        store: its store.
        key: its key; "" for the root.
    """

    def __init__(self, store: FileStore, key: str = "") -> None:
        self.store = store
        self.key = key

    @property
    def name(self) -> str:
        """Last part of the key; for the root, of the store's name."""
        return posixpath.basename(self.key or self.store.shown)

    @property
    def parent(self) -> StoreSource:
        """Folder that contains it; the root itself for the root."""
        return StoreSource(self.store, posixpath.dirname(self.key))

    def __truediv__(self, name: str) -> StoreSource:
        return StoreSource(self.store, posixpath.join(self.key, name))

    def with_name(self, name: str) -> StoreSource:
        """Return the source with this name beside it."""
        return self.parent / name

    def is_file(self) -> bool:
        """Whether there is a file of this key."""
        return bool(self.key) and self.store.entry(self.key) is not None

    def is_dir(self) -> bool:
        """Whether it is the root, or there are files below it but no such file."""
        return not self.key or (not self.is_file() and bool(self.store.names(self.key)))

    def names(self) -> list[str]:
        """Return the names of the files in the folder."""
        return self.store.names(self.key)

    def open(self) -> ByteFile:
        """Open the file."""
        return self.store.opened(self)

    def require_there(self) -> None:
        """Check that something exists at or below this source."""
        self.store.require_there(self)

    def state(self) -> list[str | int]:
        """Return its name, size and version."""
        entry = self.store.entry(self.key)
        return [str(self), *((entry.size, entry.version) if entry else ())]

    def together(
        self, action: Callable[[Any], _Result], sources: Iterable[RemoteSource]
    ) -> list[_Result]:
        """Return the result of the action for each source, in separate threads: most of the time is
        waiting."""
        with ThreadPoolExecutor(CONNECTIONS, "together") as pool:
            return list(pool.map(action, sources))

    def require_unchanged(self) -> None:
        """Check that no file that was read has been replaced.

        Raises:
            RemoteError: a file was replaced; the message names it.
        """
        changed = self.store.changed()
        if changed:
            raise RemoteError(
                f"{StoreSource(self.store, changed[0])} was replaced while it was read",
                "start again when nothing writes to it",
            )

    def __str__(self) -> str:
        return posixpath.join(self.store.shown, self.key) if self.key else self.store.shown

    def __repr__(self) -> str:
        return f"StoreSource({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoreSource) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

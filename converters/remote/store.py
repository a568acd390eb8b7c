"""What has files by keys (a repository of a hub, a bucket, a server), and the places in it."""

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
from converters.remote.retries import persistent

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class StoredFile:
    """A file of a store.

    Attributes:
        size: in bytes.
        version: what another content of the same key would not have (a generation, an ETag); "" if
            the store does not say.
    """

    size: int
    version: str


class FileStore(ABC):
    """What has files by `/`-joined keys.

    It can be sent to another process, with what is known of its files.

    Attributes:
        shown: what to call it in messages and records; no secrets.
        said: how a name was understood, for the user; "" if there is nothing to say.
    """

    shown: str
    said: str = ""

    def __init__(self) -> None:
        self._files: dict[str, ByteFile] = {}
        self._kept: dict[str, list[tuple[int, bytes]]] = {}
        self._used: dict[str, StoredFile] = {}
        self._lock = threading.RLock()

    @abstractmethod
    def entry(self, key: str) -> StoredFile | None:
        """The file of this key; None: there is none.

        Raises:
            RemoteError: the other side refuses, or does not answer.
        """

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """The names of the files in a folder ("" is the whole), in order; [] where it cannot be listed."""

    @abstractmethod
    def fetch(self, key: str, entry: StoredFile, start: int, into: memoryview) -> None:
        """Read bytes of this very version, in one request.

        Args:
            key: of the file.
            entry: of it, as it was found.
            start: the first byte.
            into: where they go, as many as there is room for.

        Raises:
            TemporaryError: try again, as also where the bytes were not as many.
            RemoteError: the other side refuses, or has another version by now.
        """

    def require_there(self, place: StoreSource) -> None:  # noqa: B027 (a hub said so already)
        """Something is at or below a place.

        Raises:
            CheckpointNotFoundError: nothing is.
        """

    def changed(self) -> list[str]:
        """The keys of files that were read and are others by now, as far as the store tells."""
        return []

    def opened(self, place: StoreSource) -> ByteFile:
        """The file of a place, one object for all who read it.

        Raises:
            CheckpointNotFoundError: there is none.
        """
        key = place.key
        entry = self.entry(key)
        if entry is None:
            raise CheckpointNotFoundError(f"{place} does not exist", "check the name")
        with self._lock:
            if key not in self._files:
                fetch = partial(self._persistently, place, entry)
                self._used[key] = entry
                self._files[key] = FarFile(place, entry.size, fetch, self._kept.get(key))
            return self._files[key]

    def _persistently(self, place: StoreSource, entry: StoredFile, start: int, into: memoryview) -> None:
        persistent(lambda: self.fetch(place.key, entry, start, into), place)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        kept = {key: file.kept for key, file in self._files.items() if isinstance(file, FarFile)}
        return state | {"_files": {}, "_kept": self._kept | kept, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = state
        self._lock = threading.RLock()


class StoreSource(RemoteSource):
    """A file or folder of a store.

    Args:
        store: what it is in.
        key: its key; "" is the whole.
    """

    def __init__(self, store: FileStore, key: str = "") -> None:
        self.store = store
        self.key = key

    @property
    def name(self) -> str:
        """The last part of the key; of the whole, that of the store's name."""
        return posixpath.basename(self.key or self.store.shown)

    @property
    def parent(self) -> StoreSource:
        """The folder that it is in; of the whole, itself."""
        return StoreSource(self.store, posixpath.dirname(self.key))

    def __truediv__(self, name: str) -> StoreSource:
        return StoreSource(self.store, posixpath.join(self.key, name))

    def with_name(self, name: str) -> StoreSource:
        """What has this name beside it."""
        return self.parent / name

    def is_file(self) -> bool:
        """Whether there is a file of this key."""
        return bool(self.key) and self.store.entry(self.key) is not None

    def is_dir(self) -> bool:
        """Whether there is no such file, but the whole, or files below it."""
        return not self.key or (not self.is_file() and bool(self.store.names(self.key)))

    def names(self) -> list[str]:
        """The names of the files in the folder."""
        return self.store.names(self.key)

    def open(self) -> ByteFile:
        """The file."""
        return self.store.opened(self)

    def require_there(self) -> None:
        """Something is at or below this place."""
        self.store.require_there(self)

    def state(self) -> list[str | int]:
        """Its name, size and version."""
        entry = self.store.entry(self.key)
        return [str(self), *((entry.size, entry.version) if entry else ())]

    def together(
        self, action: Callable[[Any], _Result], places: Iterable[RemoteSource]
    ) -> list[_Result]:
        """What the action gives for each, in threads of their own: most of their time is waiting."""
        with ThreadPoolExecutor(CONNECTIONS, "together") as pool:
            return list(pool.map(action, places))

    def require_unchanged(self) -> None:
        """Nothing that was read is another file by now.

        Raises:
            RemoteError: something is, by name.
        """
        changed = self.store.changed()
        if changed:
            raise RemoteError(
                f"{StoreSource(self.store, changed[0])} was replaced while it was read",
                "start again, when nobody writes it",
            )

    def __str__(self) -> str:
        return posixpath.join(self.store.shown, self.key) if self.key else self.store.shown

    def __repr__(self) -> str:
        return f"StoreSource({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoreSource) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

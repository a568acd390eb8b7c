"""Sources of checkpoints: paths, and files or folders of a hub, a bucket or a server; and their bytes."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from mmap import mmap
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

_Result = TypeVar("_Result")


class Window(ABC):
    """Tensor of which parts are read: views of its array, which must be filled before use.

    Attributes:
        array: the tensor; unfilled elements are undefined.
    """

    array: np.ndarray[Any, Any]

    @abstractmethod
    def cost(self, views: Iterable[np.ndarray[Any, Any]]) -> int | None:
        """Return the number of bytes to read for these views; None if one is a copy, which cannot be
        filled."""

    @abstractmethod
    def prepare(self, views: Iterable[np.ndarray[Any, Any]]) -> None:
        """Begin to read the contents of these views."""

    @abstractmethod
    def fill(self, view: np.ndarray[Any, Any]) -> None:
        """Fill this view."""


class ByteFile(ABC):
    """File whose parts can be read without reading the rest.

    Attributes:
        path: the source of the file.
        size: its length in bytes when it was opened.
    """

    path: Source
    size: int

    @abstractmethod
    def copy(self, start: int, end: int) -> bytes:
        """Return a copy of the bytes from `start` to `end`.

        Raises:
            CheckpointDamagedError: the file is shorter.
        """

    @abstractmethod
    def array(
        self,
        start: int,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        strides: tuple[int, ...] | None = None,
    ) -> np.ndarray[Any, Any]:
        """Return a read-only array whose first element is at `start`.

        Args:
            start: bytes from the start of the file.
            dtype: the element type.
            shape: the shape of the array.
            strides: in bytes, none negative; None: contiguous.

        Raises:
            CheckpointDamagedError: the array reaches beyond the end of the file.
        """

    @abstractmethod
    def beginnings(self) -> Iterator[bytes | mmap]:
        """Yield the file from its start, each time longer; a mapped file is yielded complete."""

    def window(
        self,
        start: int,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        strides: tuple[int, ...] | None = None,
    ) -> Window | None:
        """Return the result of `array` for reading in parts; None if `array` reads no more than is used."""
        return None

    def prepare(self, start: int, end: int) -> None:  # noqa: B027 (a mapped file needs none)
        """Begin to read. Each call is followed by one call of `array`."""

    def release(self, start: int, end: int) -> None:  # noqa: B027 (nor does each hold pages)
        """Release the pages between `start` and `end`; views of them stay valid."""

    def rest(self) -> None:  # noqa: B027
        """Close the file until the next read; a checkpoint may have thousands of files."""


class RemoteSource(ABC):
    """Remote file or folder; `str` is its name in messages, without secrets.

    It has the methods of a `pathlib.Path` that readers need, under the same names.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """Last part of the source."""

    @property
    def suffix(self) -> str:
        """Suffix, as for a path."""
        return Path(self.name).suffix

    @property
    @abstractmethod
    def parent(self) -> RemoteSource:
        """Folder that contains it."""

    @abstractmethod
    def __truediv__(self, name: str) -> RemoteSource:
        """Return the entry of this name in the folder."""

    @abstractmethod
    def with_name(self, name: str) -> RemoteSource:
        """Return the entry of this name beside it."""

    @abstractmethod
    def is_file(self) -> bool:
        """Whether it is a file."""

    @abstractmethod
    def is_dir(self) -> bool:
        """Whether it is a folder."""

    def exists(self) -> bool:
        """Whether it exists."""
        return self.is_file() or self.is_dir()

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names of the files in the folder, in order."""

    @abstractmethod
    def open(self) -> ByteFile:
        """Open the file. Only parts that were already read are available without a new read.

        Raises:
            CheckpointNotFoundError: the file does not exist.
        """

    @abstractmethod
    def state(self) -> list[str | int]:
        """Return values that identify the content of the file: its name, its size, its version."""

    def require_unchanged(self) -> None:  # noqa: B027 (what never changes has nothing to do)
        """Check that no file read here has been replaced.

        Raises:
            RemoteError: a file was replaced; the message names it.
        """

    def require_there(self) -> None:  # noqa: B027 (what was asked for when it was named is there)
        """Check that something exists at or below this source.

        Raises:
            CheckpointNotFoundError: nothing exists there, or the bucket does not exist.
        """

    @abstractmethod
    def together(
        self, action: Callable[[Any], _Result], sources: Iterable[RemoteSource]
    ) -> list[_Result]:
        """Return the results of the action for the sources, run in parallel."""

    def read_bytes(self) -> bytes:
        """Return the content of a small file."""
        file = self.open()
        return file.copy(0, file.size)


Source = Path | RemoteSource


def is_folder(source: Source) -> bool:
    """Whether the source is a folder; False for invalid names, for which pathlib raises."""
    return source.is_dir() if isinstance(source, RemoteSource) else os.path.isdir(source)


def source_exists(source: Source) -> bool:
    """Whether the source exists."""
    return source.exists() if isinstance(source, RemoteSource) else os.path.exists(source)


def size_of(source: Source) -> int:
    """Return the length of a file in bytes."""
    return source.open().size if isinstance(source, RemoteSource) else source.stat().st_size


def file_names(folder: Source) -> list[str]:
    """Return the names of the files in a folder, in order.

    Raises:
        OSError: the folder cannot be read.
    """
    if isinstance(folder, RemoteSource):
        return folder.names()
    return sorted(entry.name for entry in os.scandir(folder) if entry.is_file())


def for_each(action: Callable[[Any], _Result], sources: Iterable[Source]) -> list[_Result]:
    """Return the results of the action for the sources; remote sources are processed in parallel."""
    listed = list(sources)
    if listed and isinstance(listed[0], RemoteSource):
        return listed[0].together(action, listed)  # type: ignore[arg-type]
    return [action(source) for source in listed]

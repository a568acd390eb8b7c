"""Where a checkpoint is: a path of this machine, or a place of a hub, a bucket or a server; and its bytes."""

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
    """A tensor of which parts are read: views of its array, which are to be filled before they are looked at.

    Attributes:
        array: the tensor; what is not filled has no meaning.
    """

    array: np.ndarray[Any, Any]

    @abstractmethod
    def cost(self, views: Iterable[np.ndarray[Any, Any]]) -> int | None:
        """How many bytes would be read for these views; None: one of them is a copy, and cannot be filled."""

    @abstractmethod
    def prepare(self, views: Iterable[np.ndarray[Any, Any]]) -> None:
        """Begin to read what these views show."""

    @abstractmethod
    def fill(self, view: np.ndarray[Any, Any]) -> None:
        """Have what this view shows in its place."""


class ByteFile(ABC):
    """A file of which every part can be had, without reading the rest.

    Attributes:
        path: where it is.
        size: its length in bytes when it was opened.
    """

    path: Place
    size: int

    @abstractmethod
    def copy(self, start: int, end: int) -> bytes:
        """The bytes from `start` to `end`, which belong to the caller.

        Raises:
            CheckpointDamagedError: the file ends before.
        """

    @abstractmethod
    def array(
        self,
        start: int,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        strides: tuple[int, ...] | None = None,
    ) -> np.ndarray[Any, Any]:
        """A read-only array whose first element is at `start`.

        Args:
            start: bytes from the start of the file.
            dtype: of the elements.
            shape: of the array.
            strides: in bytes, none negative; None: contiguous.

        Raises:
            CheckpointDamagedError: it would reach beyond the end of the file.
        """

    @abstractmethod
    def beginnings(self) -> Iterator[bytes | mmap]:
        """The file from its start, longer each time; of a mapped file the whole at once."""

    def window(
        self,
        start: int,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        strides: tuple[int, ...] | None = None,
    ) -> Window | None:
        """What `array` would give, to be read in parts; None: `array` reads no more than is looked at."""
        return None

    def prepare(self, start: int, end: int) -> None:  # noqa: B027 (a mapped file needs none)
        """Begin to read what `array` will be asked for, once for each time that this is called."""

    def release(self, start: int, end: int) -> None:  # noqa: B027 (nor does each hold pages)
        """Give the pages between `start` and `end` back; views of them stay good."""

    def rest(self) -> None:  # noqa: B027
        """Hold no open file until the next read; a checkpoint may have thousands of files."""


class FarPlace(ABC):
    """A file or folder that is on no disk of this machine; `str` is what to call it, without secrets.

    It has what readers ask of a `pathlib.Path`, under the same names.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """The last part of it."""

    @property
    def suffix(self) -> str:
        """As of a path."""
        return Path(self.name).suffix

    @property
    @abstractmethod
    def parent(self) -> FarPlace:
        """The folder that it is in."""

    @abstractmethod
    def __truediv__(self, name: str) -> FarPlace:
        """What has this name in the folder."""

    @abstractmethod
    def with_name(self, name: str) -> FarPlace:
        """What has this name beside it."""

    @abstractmethod
    def is_file(self) -> bool:
        """Whether it is a file."""

    @abstractmethod
    def is_dir(self) -> bool:
        """Whether it is a folder."""

    def exists(self) -> bool:
        """Whether anything is there."""
        return self.is_file() or self.is_dir()

    @abstractmethod
    def names(self) -> list[str]:
        """The names of the files in the folder, in order."""

    @abstractmethod
    def open(self) -> ByteFile:
        """The file, of which nothing is read yet that was not read before.

        Raises:
            CheckpointNotFoundError: nothing is there.
        """

    @abstractmethod
    def state(self) -> list[str | int]:
        """What tells the content of the file from another: its name, its size, its version."""

    def require_unchanged(self) -> None:  # noqa: B027 (what never changes has nothing to do)
        """Nothing that was read here is another file by now.

        Raises:
            RemoteError: something is, by name.
        """

    def require_there(self) -> None:  # noqa: B027 (what was asked for when it was named is there)
        """Something is at or below this place.

        Raises:
            CheckpointNotFoundError: nothing is, or not even the bucket that it would be in.
        """

    @abstractmethod
    def together(
        self, action: Callable[[Any], _Result], places: Iterable[FarPlace]
    ) -> list[_Result]:
        """What the action gives for each place; they are waited for together."""

    def read_bytes(self) -> bytes:
        """The whole of a small file."""
        file = self.open()
        return file.copy(0, file.size)


Place = Path | FarPlace


def is_folder(place: Place) -> bool:
    """Whether this is a folder; no for names that cannot be, where pathlib's form raises."""
    return place.is_dir() if isinstance(place, FarPlace) else os.path.isdir(place)


def is_there(place: Place) -> bool:
    """Whether anything is there."""
    return place.exists() if isinstance(place, FarPlace) else os.path.exists(place)


def size_of(place: Place) -> int:
    """The length of a file in bytes."""
    return place.open().size if isinstance(place, FarPlace) else place.stat().st_size


def file_names(folder: Place) -> list[str]:
    """The names of the files in a folder, in order.

    Raises:
        OSError: it cannot be read.
    """
    if isinstance(folder, FarPlace):
        return folder.names()
    return sorted(entry.name for entry in os.scandir(folder) if entry.is_file())


def for_each(action: Callable[[Any], _Result], places: Iterable[Place]) -> list[_Result]:
    """What the action gives for each place; far ones are waited for together."""
    listed = list(places)
    if listed and isinstance(listed[0], FarPlace):
        return listed[0].together(action, listed)  # type: ignore[arg-type]
    return [action(place) for place in listed]

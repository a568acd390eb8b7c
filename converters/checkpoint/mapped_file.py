"""Files whose parts can be viewed or copied without reading the rest."""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from converters.checkpoint.reader import COPY_AGAIN, read_start
from converters.checkpoint.source import ByteFile, RemoteSource, Source
from converters.errors import CheckpointDamagedError

_PAGE = mmap.PAGESIZE
_SMALL = 1 << 16  # bytes
_MOST_AT_ONCE = 1 << 30  # one system call copies 2 GiB at most


def open_file(source: Source) -> ByteFile:
    """Open the file of a source.

    Raises:
        CheckpointNotFoundError: the source does not exist.
        CheckpointDamagedError: the file is empty, unreadable or not a regular file.
    """
    if isinstance(source, RemoteSource):
        read_start(source, 1)
        return source.open()
    return MappedFile(source)


class MappedFile(ByteFile):
    """Regular file, mapped when its first tensor is viewed.

    Pages of a mapped file count as memory of the process until they are released.

    Attributes:
        path: the file.
        size: its length in bytes when it was opened.

    Raises:
        CheckpointNotFoundError: the file does not exist.
        CheckpointDamagedError: the file is empty, unreadable or not a regular file.
    """

    path: Path

    def __init__(self, path: Path) -> None:
        read_start(path, 1)
        self.path = path
        self._map: mmap.mmap | None = None
        self._kept: int | None = self._open(None)
        status = os.fstat(self._kept)
        self.size = status.st_size
        self._identity = _identity(status)
        self._finalizer = weakref.finalize(self, os.close, self._kept)

    def rest(self) -> None:
        """Close the file until the next read; a checkpoint may have thousands of files.

        Call it in the thread that opened the file, before others read.
        """
        self._kept = None
        self._map = None
        self._finalizer()

    def copy(self, start: int, end: int) -> bytes:
        """Return a copy of the bytes from `start` to `end`.

        Raises:
            CheckpointDamagedError: the file is shorter.
        """
        if end - start > _SMALL or not 0 <= start <= end <= self.size:
            return self._copied(start, end).tobytes()
        with self._opened() as descriptor:
            held = os.pread(descriptor, end - start, start)
        return held if len(held) == end - start else self._copied(start, end).tobytes()

    def array(
        self,
        start: int,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        strides: tuple[int, ...] | None = None,
    ) -> np.ndarray[Any, Any]:
        """Return a read-only array whose first element is at `start`: a view of the mapped file.

        If an element's address is not a multiple of its size (legacy files put storages anywhere),
        the result is a copy, since not all code supports such arrays.

        Args:
            start: bytes from the start of the file.
            dtype: the element type.
            shape: the shape of the array.
            strides: in bytes, none negative; None: contiguous.

        Raises:
            CheckpointDamagedError: the array reaches beyond the end of the file.
        """
        length = extent(shape, dtype.itemsize, strides)
        if start < 0 or start + length > self.size:
            raise self._ended()
        if length == 0:
            return np.zeros(shape, dtype)
        if start % dtype.alignment:
            held = self._copied(start, start + length)
            array: np.ndarray[Any, Any] = np.ndarray(shape, dtype, held.data, 0, strides)
            array.flags.writeable = False
            return array
        return np.ndarray(shape, dtype, self.mapped(), start, strides)

    def release(self, start: int, end: int) -> None:
        """Release the pages between `start` and `end`; views of them stay valid and read again."""
        held = self._map
        if held is None or end <= start:
            return
        first = start // _PAGE * _PAGE
        held.madvise(mmap.MADV_DONTNEED, first, min(end, self.size) - first)
        self._map = None  # closed with the last view

    def beginnings(self) -> Iterator[mmap.mmap]:
        """Yield the complete file."""
        yield self.mapped()

    def mapped(self) -> mmap.mmap:
        """Return the complete file as mapped bytes; never read them beyond `size`.

        Raises:
            CheckpointDamagedError: the file was truncated after it was opened.
        """
        held = self._map
        if held is None:
            with self._opened() as descriptor:
                try:
                    held = mmap.mmap(descriptor, self.size, access=mmap.ACCESS_READ)
                except (OSError, ValueError) as error:
                    raise CheckpointDamagedError(
                        f"{self.path} cannot be mapped ({error})", COPY_AGAIN
                    ) from None
            self._map = held
        return held

    def _copied(self, start: int, end: int) -> np.ndarray[Any, Any]:
        if not 0 <= start <= end <= self.size:
            raise self._ended()
        held = np.empty(end - start, np.uint8)
        done = 0
        with self._opened() as descriptor:
            while done < len(held):
                part = held[done : done + _MOST_AT_ONCE]
                count = os.preadv(descriptor, [part.data], start + done)
                if count == 0:
                    raise self._ended()
                done += count
        return held

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """Yield a descriptor of the file: the kept one, or one that no other thread has."""
        if self._kept is not None:
            yield self._kept
            return
        descriptor = self._open(self._identity)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _open(self, identity: tuple[int, ...] | None) -> int:
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise CheckpointDamagedError(
                f"{self.path} cannot be read ({error.strerror})",
                "check its permissions, and how many files can be open (`ulimit -n`)",
            ) from None
        if identity is not None and _identity(os.fstat(descriptor)) != identity:
            os.close(descriptor)
            raise CheckpointDamagedError(
                f"{self.path} was replaced while it was read", "start again"
            )
        return descriptor

    def _ended(self) -> CheckpointDamagedError:
        return CheckpointDamagedError(
            f"{self.path} is truncated or damaged (it ends where more is announced)", COPY_AGAIN
        )


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size


def extent(shape: tuple[int, ...], itemsize: int, strides: tuple[int, ...] | None = None) -> int:
    """Return the number of bytes from the first to the last byte of an array; strides are in bytes."""
    if 0 in shape:
        return 0
    if strides is None:
        count = itemsize
        for side in shape:
            count *= side
        return count
    length = itemsize
    for side, step in zip(shape, strides, strict=True):
        length += (side - 1) * step
    return length

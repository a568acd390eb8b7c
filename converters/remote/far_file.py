"""Remote file read by byte ranges: each range once, several at a time, on demand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np

from converters.checkpoint.mapped_file import extent
from converters.checkpoint.reader import COPY_AGAIN
from converters.checkpoint.source import ByteFile, RemoteSource, Window
from converters.errors import CheckpointDamagedError
from converters.remote.window import FarWindow

CONNECTIONS = 32
# Bytes per request; times the number of connections this is the data in flight.
PART_BYTES = 4 << 20
HEAD_BYTES = 64 << 10  # covers the header of most files
_AROUND = 4 << 10  # reading a few bytes costs as much as this
_MOST_KEPT = 1 << 20
_ALIGNMENT = 64
_BEGINNINGS = (1 << 20, 1 << 24, 1 << 28)

Bytes = np.ndarray[Any, Any]  # uint8


@cache
def connections() -> ThreadPoolExecutor:
    """Return the threads that wait for the other side; a request never waits for another request."""
    return ThreadPoolExecutor(CONNECTIONS, "fetch")


class _Ahead:
    """Range that was requested, and how often it will be used."""

    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end
        self.wanted = 1
        self.parts: list[Future[None]] = []
        # Same offset modulo 64 as in the file, so that aligned data stays aligned.
        held = np.empty(end - start + _ALIGNMENT, np.uint8)
        first = (start - held.ctypes.data) % _ALIGNMENT
        self.data: Bytes = held[first : first + end - start]

    def wait(self) -> None:
        for part in self.parts:
            part.result()

    def covers(self, start: int, end: int) -> bool:
        return self.start <= start and end <= self.end


class FarFile(ByteFile):
    """Remote file; no part of it is on a local disk.

    Small reads (headers) are kept. Parts of a tensor that overlap them are not read again.

    Args:
        path: its source.
        size: its length in bytes.
        fetch: reads the bytes from a start into memory, in one request with retries.
        kept: (start, bytes) that are already known.
    """

    def __init__(
        self,
        path: RemoteSource,
        size: int,
        fetch: Callable[[int, memoryview], None],
        kept: list[tuple[int, bytes]] | None = None,
    ) -> None:
        self.path = path
        self.size = size
        self._fetch = fetch
        self.kept: list[tuple[int, bytes]] = list(kept or [])
        self._ahead: list[_Ahead] = []
        self._lock = threading.Lock()

    def copy(self, start: int, end: int) -> bytes:
        """Return the bytes from `start` to `end`; a little more is read with them, and kept."""
        self._require_inside(start, end)
        if start == end:
            return b""
        ahead = self._covering(start, end)
        if ahead is not None:
            ahead.wait()
            return ahead.data[start - ahead.start : end - ahead.start].tobytes()
        for first, data in self.kept:
            if first <= start and end <= first + len(data):
                return data[start - first : end - first]
        last = max(end, HEAD_BYTES if start < HEAD_BYTES else start + _AROUND)
        read = self._read(start, min(last, self.size)).tobytes()
        if len(read) <= _MOST_KEPT:
            with self._lock:
                self.kept.append((start, read))
        return read[: end - start]

    def array(
        self,
        start: int,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        strides: tuple[int, ...] | None = None,
    ) -> Bytes:
        """Return a read-only array of bytes that were prepared, or are read now."""
        end = start + extent(shape, dtype.itemsize, strides)
        self._require_inside(start, end)
        if start == end:
            return np.zeros(shape, dtype)
        data = self._taken(start, end)
        if start % dtype.alignment:
            data = data.copy()
        array: Bytes = np.ndarray(shape, dtype, data.data, 0, strides)
        array.flags.writeable = False
        return array

    def window(
        self,
        start: int,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        strides: tuple[int, ...] | None = None,
    ) -> Window | None:
        """Return the result of `array` for reading in parts."""
        end = start + extent(shape, dtype.itemsize, strides)
        self._require_inside(start, end)
        if start == end or start % dtype.alignment:
            return None
        return FarWindow(self.read_into, start, dtype, shape, strides)

    def read_into(self, start: int, into: Bytes) -> list[Future[None]]:
        """Begin to read bytes into this memory. They are complete when all returned futures are done."""
        with self._lock:
            return self._filling(start, into)

    def prepare(self, start: int, end: int) -> None:
        """Begin to read these bytes."""
        self._require_inside(start, end)
        with self._lock:
            for ahead in self._ahead:
                if (ahead.start, ahead.end) == (start, end):
                    ahead.wanted += 1
                    return
            if start < end:
                self._ahead.append(self._begun(start, end))

    def beginnings(self) -> Iterator[bytes]:
        """Yield the first megabyte, then more of the file on each request."""
        for size in _BEGINNINGS:
            yield self.copy(0, min(size, self.size))
            if size >= self.size:
                return

    def _require_inside(self, start: int, end: int) -> None:
        if not 0 <= start <= end <= self.size:
            raise CheckpointDamagedError(
                f"{self.path} is truncated or damaged (it ends where more is announced)", COPY_AGAIN
            )

    def _covering(self, start: int, end: int) -> _Ahead | None:
        with self._lock:
            return next((ahead for ahead in self._ahead if ahead.covers(start, end)), None)

    def _taken(self, start: int, end: int) -> Bytes:
        ahead = self._covering(start, end)
        if ahead is None:
            return self._read(start, end)
        with self._lock:
            ahead.wanted -= 1
            if ahead.wanted == 0:
                self._ahead.remove(ahead)
        ahead.wait()
        return ahead.data[start - ahead.start : end - ahead.start]

    def _read(self, start: int, end: int) -> Bytes:
        with self._lock:
            ahead = self._begun(start, end)
        ahead.wait()
        return ahead.data

    def _begun(self, start: int, end: int) -> _Ahead:
        """Return the range, with kept bytes in place and the rest being read."""
        ahead = _Ahead(start, end)
        ahead.parts = self._filling(start, ahead.data)
        return ahead

    def _filling(self, start: int, into: Bytes) -> list[Future[None]]:
        end = start + into.size
        parts: list[Future[None]] = []
        at = start
        for first, data in [*sorted(self.kept), (end, b"")]:
            if first + len(data) <= at and first < end:
                continue
            for begin in range(at, min(first, end), PART_BYTES):
                stop = min(begin + PART_BYTES, first, end)
                part = into[begin - start : stop - start]
                parts.append(connections().submit(self._fetch, begin, part.data))
            begin, stop = max(first, at), min(first + len(data), end)
            if begin < stop:
                known = np.frombuffer(data, np.uint8)[begin - first : stop - first]
                into[begin - start : stop - start] = known
            at = max(at, stop)
            if at >= end:
                break
        return parts

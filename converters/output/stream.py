"""Streaming of all leaves' values into a file, slab by slab, on all cores.

Threads read, rearrange, check and write slabs in the order of the file. numpy and the system calls
release the GIL, and the kernel lets one thread at a time write to a file: while one writes, another
rearranges. The largest range (`Unit`) of the checkpoint bounds the memory in use.
"""

from __future__ import annotations

import itertools
import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from converters.checkpoint.dtypes import numpy_dtype
from converters.checkpoint.pytree import Sliceable, Unit
from converters.checkpoint.source import Source
from converters.output.copying import copy_arranged
from converters.output.examine import check_sum, count_not_finite
from converters.output.layouts import FrameBytes, PlacedLeaf
from converters.output.partial import Slab
from converters.output.units import Box, boxes, units_of

Array = np.ndarray[Any, Any]
Progress = Callable[[int, int], None]

# Bytes of the checkpoint that may be open in addition to the largest unit: enough for small tensors
# to overlap.
_OPEN_BESIDE = 96 << 20
# A larger unit is not completely in memory at once: its pages are released as they are read. Its
# slabs are larger, because each slab of a transposed tensor reads from all of it.
_LARGE = 192 << 20
# Bytes of remote data read ahead, unless the caller sets another number.
AHEAD_BYTES = 256 << 20
# Slabs between two checks that the other processes of the output still live.
_LOOK_SECONDS = 1.0
# Checked and written together, so that the write finds the data in the cache.
_PIECE = 1 << 20


class Sink(Protocol):
    """Output that is being written: `Partial` on disk, `FarPartial` in a bucket.

    Attributes:
        output: its final location.
        claimed: leaf → its slabs from an earlier run of the same conversion.
        left_over: whether output of an earlier run exists.
    """

    @property
    def output(self) -> Source: ...  # noqa: D102
    @property
    def claimed(self) -> Mapping[str, tuple[Slab, ...]]: ...  # noqa: D102
    @property
    def left_over(self) -> bool: ...  # noqa: D102

    def verified(self, placed: Sequence[PlacedLeaf]) -> dict[str, tuple[Slab, ...]]:
        """Return the leaves of an earlier run that are unchanged."""

    def write(self, file: str, offset: int, data: Array) -> None:
        """Write bytes at an offset of a file."""

    def read(self, file: str, offset: int, into: Array) -> bool:
        """Read bytes from an offset. Return whether all of them existed."""

    def record(self, path: str, slabs: Sequence[Slab]) -> None:
        """Record that a leaf is written."""

    def leaves_of_process(self, placed: Sequence[PlacedLeaf]) -> Sequence[PlacedLeaf]:
        """Return the leaves that this process writes, if several write the output together."""

    def combined(
        self, not_finite: Mapping[str, int], digests: Mapping[str, str]
    ) -> tuple[Mapping[str, int], Mapping[str, str]]:
        """Return the results of all processes for the leaves: numbers of non-finite values, SHA-256."""

    def require_all(self) -> None:
        """Check that no other process of the output has died or failed.

        Raises:
            HostsError: another process has.
        """

    def write_frames(self, frames: Sequence[FrameBytes]) -> None:
        """Write the bytes that are not values."""

    def sync(self) -> None:
        """Bring everything to its final storage."""


@dataclass
class _OpenUnit:
    """Open unit, its bytes in memory, and its unwritten slabs."""

    unit: Unit
    source: Sliceable
    nbytes: int
    left: int = 0


@dataclass
class _Task:
    """Slab to write."""

    placed: PlacedLeaf
    opened: _OpenUnit
    start: int
    box: Box
    contiguous: bool


@dataclass
class _Writing:
    """Leaf that is being written: its slabs are collected until none is missing."""

    lacking: int
    slabs: list[Slab] = field(default_factory=list)


def stream(
    file: Sink,
    placed: Sequence[PlacedLeaf],
    done: Mapping[str, tuple[Slab, ...]],
    progress: Progress | None,
    *,
    ahead_bytes: int = AHEAD_BYTES,
) -> dict[str, tuple[Slab, ...]]:
    """Write the unfinished leaves. Each leaf is recorded in the journal when it is complete.

    Args:
        file: the output.
        placed: the leaves and their ranges.
        done: leaf → its slabs, for leaves that need not be written.
        progress: called with the bytes done and their total.
        ahead_bytes: bytes of remote data to read ahead.

    Returns:
        Leaf → its slabs, for all leaves.
    """
    total = sum(place.leaf.info.nbytes for place in placed)
    written = dict(done)
    count = sum(slab.stop - slab.start for slabs in done.values() for slab in slabs)
    workers = max(2, min(8, os.cpu_count() or 1))
    buffers = threading.local()
    tasks = _Tasks([place for place in placed if place.leaf.path not in done], ahead_bytes)
    lacking: dict[str, _Writing] = {}
    pending: dict[Future[Slab], _Task] = {}
    with ThreadPoolExecutor(workers, "write") as pool:
        try:
            while True:
                while len(pending) < 2 * workers and (task := tasks.next()):
                    pending[pool.submit(_write, file, task, buffers)] = task
                if not pending:
                    break
                file.require_all()
                finished, _ = wait(pending, _LOOK_SECONDS, return_when=FIRST_COMPLETED)
                for future in finished:
                    task, slab = pending.pop(future), future.result()
                    tasks.finished(task)
                    count += slab.stop - slab.start
                    _collect(file, task.placed, slab, lacking, written)
                if progress:
                    progress(count, total)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            # Slabs in progress are finished: a later run need not write them again.
            for future, task in pending.items():
                if not future.cancelled() and future.exception() is None:
                    _collect(file, task.placed, future.result(), lacking, written)
            raise
    for place in placed:  # leaves without elements have no slabs
        if place.leaf.path not in written:
            written[place.leaf.path] = ()
            file.record(place.leaf.path, ())
    return written


def _collect(
    file: Sink,
    placed: PlacedLeaf,
    slab: Slab,
    lacking: dict[str, _Writing],
    written: dict[str, tuple[Slab, ...]],
) -> None:
    path = placed.leaf.path
    writing = lacking.setdefault(path, _Writing(placed.leaf.info.nbytes))
    writing.slabs.append(slab)
    writing.lacking -= slab.stop - slab.start
    if writing.lacking == 0:
        slabs = tuple(sorted(writing.slabs, key=lambda slab: slab.start))
        written[path] = slabs
        file.record(path, slabs)
        del lacking[path]


class _Tasks:
    """Slabs in the order of the file, limited by the memory for open units."""

    def __init__(self, placed: Sequence[PlacedLeaf], ahead_bytes: int) -> None:
        self._ahead_bytes = ahead_bytes
        self._asked: deque[int] = deque()  # for the first units: bytes of each that are read ahead
        self._latest: Callable[[], None] | None = None
        self._units = deque((place, unit) for place in placed for unit in units_of(place.leaf))
        self._slabs: Iterator[_Task] = iter(())
        self._open = 0
        sizes = [self._size(place, unit) for place, unit in self._units]
        self._limit = max(sizes, default=0) + _OPEN_BESIDE

    def next(self) -> _Task | None:
        """Return the next slab; None if there is none, or others must finish first."""
        while (task := next(self._slabs, None)) is None:
            if not self._units:
                return None
            size = self._size(*self._units[0])
            if self._open and self._open + size > self._limit:
                return None
            self._ask()
            self._asked.popleft()
            self._open_unit(*self._units.popleft(), size)
        return task

    def _ask(self) -> None:
        """Request units before they are due: the next one, and more within the byte limit."""
        held = sum(self._asked)
        for placed, unit in itertools.islice(self._units, len(self._asked), None):
            # Units that share bytes with the previous one are requested together, or the bytes are
            # read again.
            shared = unit.prepare is not None and unit.prepare is self._latest
            size = 0 if shared else _nbytes(placed, unit)
            if self._asked and held + size > self._ahead_bytes:
                return
            if unit.prepare is not None:
                unit.prepare()
            self._latest = unit.prepare
            self._asked.append(size)
            held += size

    def finished(self, task: _Task) -> None:
        """Release the unit of a written slab if it was the last."""
        opened = task.opened
        opened.left -= 1
        if opened.left == 0:
            self._open -= opened.nbytes
            del opened.source
            opened.unit.release()

    def _open_unit(self, placed: PlacedLeaf, unit: Unit, size: int) -> None:
        source = unit.open()
        _require_announced(placed, unit, source)
        self._open += size
        contiguous = isinstance(source, np.ndarray) and source.flags.c_contiguous
        itemsize = numpy_dtype(placed.leaf.info.dtype, placed.leaf.path).itemsize
        opened = _OpenUnit(unit, source, size)
        slabs = [
            _Task(placed, opened, unit.start + start, box, contiguous)
            for start, box in boxes(
                unit.shape, itemsize, contiguous=contiguous, large=size >= _LARGE
            )
        ]
        opened.left = len(slabs)
        if not slabs:
            self._open -= size
        self._slabs = iter(slabs)

    @staticmethod
    def _size(placed: PlacedLeaf, unit: Unit) -> int:
        return min(_nbytes(placed, unit), _LARGE)


def _nbytes(placed: PlacedLeaf, unit: Unit) -> int:
    itemsize = numpy_dtype(placed.leaf.info.dtype, placed.leaf.path).itemsize
    return math.prod(unit.shape) * itemsize


def _require_announced(placed: PlacedLeaf, unit: Unit, source: Sliceable) -> None:
    leaf = placed.leaf
    if source.shape != unit.shape or (source.dtype.name != leaf.info.dtype and not leaf.cast):
        # The frame is already fixed: a file that contradicts it must never be completed.
        raise RuntimeError(f"{leaf.path}: announced {leaf.info}, got {source.shape} {source.dtype}")


def _write(file: Sink, task: _Task, buffers: threading.local) -> Slab:
    info = task.placed.leaf.info
    # For arrays without axes numpy returns a scalar.
    array = np.asarray(task.opened.source[task.box])
    if array.dtype.name != info.dtype:
        array = array.astype(numpy_dtype(info.dtype, task.placed.leaf.path))
    release = task.opened.unit.release if task.opened.nbytes >= _LARGE else None
    if not array.flags.c_contiguous:
        array = _arranged(array, buffers, release)
    data = array.reshape(-1).view(np.uint8)
    total, not_finite = 0, 0
    for start in range(0, data.size, _PIECE):
        piece = data[start : start + _PIECE]
        total = check_sum(piece, total)
        not_finite += count_not_finite(piece, info.dtype)
        first = task.start + start
        for span in task.placed.spans(first, first + piece.size):
            file.write(span.file, span.offset, piece[span.start - first : span.stop - first])
    if release is not None:
        release()
    return Slab(task.start, task.start + data.size, total, not_finite)


def _arranged(array: Array, buffers: threading.local, release: Callable[[], None] | None) -> Array:
    """Return the array in row-major order, in this thread's buffer."""
    held = getattr(buffers, "held", None)
    if held is None or held.size < array.nbytes:
        held = buffers.held = np.empty(array.nbytes, np.uint8)
    target = held[: array.nbytes].view(array.dtype).reshape(array.shape)
    copy_arranged(target, array, release)
    return target

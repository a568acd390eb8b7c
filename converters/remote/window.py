"""Tensors of a remote file that are read in parts and filled before use."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

import numpy as np

from converters.checkpoint.mapped_file import extent
from converters.checkpoint.source import Window

Array = np.ndarray[Any, Any]

# Ranges this close together are read as one: the bytes between cost less than another request.
_NEAR = 64 << 10


class FarWindow(Window):
    """Tensor of a remote file.

    Args:
        read_into: begins to read the file's bytes from a start into memory; the returned futures
            are done when the bytes have arrived.
        start: the offset of its first element.
        dtype: its element type.
        shape: its shape.
        strides: in bytes; None: contiguous.
    """

    def __init__(
        self,
        read_into: Callable[[int, Array], list[Future[None]]],
        start: int,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        strides: tuple[int, ...] | None,
    ) -> None:
        self._read_into = read_into
        self._start = start
        # The system provides memory page by page, on the first write.
        self._held = np.empty(extent(shape, dtype.itemsize, strides), np.uint8)
        self.array = np.ndarray(shape, dtype, self._held.data, 0, strides)
        self._reading: dict[tuple[int, int], list[Future[None]]] = {}

    def cost(self, views: Iterable[Array]) -> int | None:
        """Return the number of bytes to read for these views; None if one is not a view."""
        spans: list[tuple[int, int]] = []
        for view in views:
            if view.size and not np.may_share_memory(view, self._held):
                return None
            spans += self._spans(view)
        return sum(end - start for start, end in _merged(spans, 0))

    def prepare(self, views: Iterable[Array]) -> None:
        """Begin to read the contents of these views."""
        spans = _merged([span for view in views for span in self._spans(view)], _NEAR)
        for start, end in spans:
            if not any(first <= start and end <= last for first, last in self._reading):
                into = self._held[start:end]
                self._reading[start, end] = self._read_into(self._start + start, into)

    def fill(self, view: Array) -> None:
        """Fill this view."""
        if view.size and not np.may_share_memory(view, self._held):
            raise RuntimeError("a copy of what was not read yet")  # must never be used as values
        self.prepare([view])
        spans = self._spans(view)
        for (first, last), parts in self._reading.items():
            if any(start < last and first < end for start, end in spans):
                for part in parts:
                    part.result()

    def _spans(self, view: Array) -> list[tuple[int, int]]:
        """Return the byte ranges of a view, with nearby ranges merged."""
        if not view.size:
            return []
        start = view.__array_interface__["data"][0] - self._held.ctypes.data
        length = view.dtype.itemsize
        apart: list[tuple[int, int]] = []  # (steps, bytes of each) between ranges
        axes = zip(view.shape, view.strides, strict=True)
        for count, stride in sorted(axes, key=lambda axis: abs(axis[1])):
            if count == 1 or stride == 0:
                continue
            if stride < 0:
                start += stride * (count - 1)
            step = abs(stride)
            if not apart and step <= length + _NEAR:
                length = step * (count - 1) + length
            else:
                apart.append((count, step))
        places = itertools.product(*(range(0, count * step, step) for count, step in apart))
        firsts = (start + sum(place) for place in places)
        return _merged([(first, first + length) for first in firsts], _NEAR)


def _merged(spans: Iterable[tuple[int, int]], near: int) -> list[tuple[int, int]]:
    """Return the spans in order, merging spans that overlap or are close together."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1] + near:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged

"""Tensors as torch stores them: a storage, and the offset, shape and strides of each tensor in it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from converters.checkpoint.dtypes import numpy_dtype
from converters.checkpoint.lazy import LazyTensor
from converters.checkpoint.mapped_file import extent
from converters.checkpoint.reader import TensorInfo, is_shape, is_steps
from converters.checkpoint.source import ByteFile, Window
from converters.checkpoint.zip_archive import Member, ZipArchive

# A tensor that repeats its storage (`expand`) can claim any size with a few bytes of file.
_MOST_EXPANSION = 64
_SMALL = 1 << 24  # bytes


class Span(ABC):
    """Bytes of a storage.

    Attributes:
        nbytes: the number of bytes.
    """

    nbytes: int

    @abstractmethod
    def array(
        self, start: int, dtype: np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> np.ndarray[Any, Any]:
        """Return a read-only array that starts at byte `start`; strides are in bytes."""

    def window(
        self, start: int, dtype: np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> Window | None:
        """Return the result of `array` for reading in parts; None if impossible or unnecessary."""
        return None

    def prepare(self, start: int, end: int) -> None:  # noqa: B027 (what lies on a disk needs none)
        """Begin to read these bytes; a call of `array` follows."""

    @abstractmethod
    def release(self, start: int, end: int) -> None:
        """Release the pages between these bytes."""

    def copy(self, start: int, end: int) -> bytes:
        """Return a copy of the bytes between `start` and `end`."""
        return self.array(start, np.dtype(np.uint8), (end - start,), (1,)).tobytes()


class FileSpan(Span):
    """Storage that is stored unchanged in a file.

    Args:
        file: the file.
        start: its offset in the file.
        nbytes: its length.
    """

    def __init__(self, file: ByteFile, start: int, nbytes: int) -> None:
        self.file = file
        self.start = start
        self.nbytes = nbytes

    def array(
        self, start: int, dtype: np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> np.ndarray[Any, Any]:
        """Return a view of the mapped file."""
        return self.file.array(self.start + start, dtype, shape, strides)

    def window(
        self, start: int, dtype: np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> Window | None:
        """Return the window of the file."""
        return self.file.window(self.start + start, dtype, shape, strides)

    def prepare(self, start: int, end: int) -> None:
        """Begin to read the bytes."""
        self.file.prepare(self.start + start, self.start + end)

    def release(self, start: int, end: int) -> None:
        """Release the pages."""
        self.file.release(self.start + start, self.start + end)


class BytesSpan(Span):
    """Bytes in memory."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.nbytes = len(data)

    def array(
        self, start: int, dtype: np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> np.ndarray[Any, Any]:
        """Return a view; a copy if an element would be misaligned."""
        length = extent(shape, dtype.itemsize, strides)
        if not length:
            return np.zeros(shape, dtype)
        held = np.frombuffer(self.data[start : start + length], np.uint8)
        if held.ctypes.data % dtype.alignment:
            held = held.copy()
        array: np.ndarray[Any, Any] = np.ndarray(shape, dtype, held.data, 0, strides)
        array.flags.writeable = False
        return array

    def release(self, start: int, end: int) -> None:
        """Do nothing: the bytes stay."""


class PartSpan(Span):
    """Range of bytes of another span, whose location may be set later.

    Args:
        nbytes: its length.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._span: Span | None = None
        self._start = 0

    def settle(self, span: Span, start: int = 0) -> PartSpan:
        """Set the location, before a tensor is read."""
        self._span, self._start = span, start
        return self

    def array(
        self, start: int, dtype: np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> np.ndarray[Any, Any]:
        """Return an array of the other span."""
        assert self._span is not None, "it was settled"
        return self._span.array(self._start + start, dtype, shape, strides)

    def window(
        self, start: int, dtype: np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> Window | None:
        """Return the window of the file."""
        return (
            None
            if self._span is None
            else self._span.window(self._start + start, dtype, shape, strides)
        )

    def prepare(self, start: int, end: int) -> None:
        """Begin to read the bytes."""
        if self._span is not None:
            self._span.prepare(self._start + start, self._start + end)

    def release(self, start: int, end: int) -> None:
        """Release the pages."""
        if self._span is not None:
            self._span.release(self._start + start, self._start + end)


class MemberSpan(Span):
    """Storage that is stored unchanged in an archive; its offset is determined when it is read.

    The member's own header, which determines the offset, is directly before it: in a remote file
    both are read together.
    """

    def __init__(self, archive: ZipArchive, member: Member) -> None:
        self._archive = archive
        self._member = member
        self.nbytes = member.size
        self.where = str(archive.file.path)

    @cached_property
    def start(self) -> int:
        """Offset of the content in the file."""
        return self._archive.content_start(self._member)

    def array(
        self, start: int, dtype: np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> np.ndarray[Any, Any]:
        """Return a view of the file."""
        return self._archive.file.array(self.start + start, dtype, shape, strides)

    def window(
        self, start: int, dtype: np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> Window | None:
        """Return the window of the file."""
        return self._archive.file.window(self.start + start, dtype, shape, strides)

    def prepare(self, start: int, end: int) -> None:
        """Begin to read the bytes, with the header if all of them are requested."""
        is_complete = (start, end) == (0, self.nbytes)
        bounds = self._archive.bounds(self._member)
        self._archive.file.prepare(
            *(bounds if is_complete else (self.start + start, self.start + end))
        )

    def release(self, start: int, end: int) -> None:
        """Release the pages."""
        self._archive.file.release(self.start + start, self.start + end)


class InflatedSpan(Span):
    """Storage that is compressed in its archive: it is read whole, and dropped when released."""

    def __init__(self, archive: ZipArchive, member: Member) -> None:
        self._archive = archive
        self._member = member
        self._held: np.ndarray[Any, Any] | None = None
        self.nbytes = member.size

    def array(
        self, start: int, dtype: np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> np.ndarray[Any, Any]:
        """Return a view of the inflated bytes."""
        if self._held is None:
            self._held = self._archive.inflate(self._member)
            self._held.flags.writeable = False
        if 0 in shape:
            return np.zeros(shape, dtype)
        array: np.ndarray[Any, Any] = np.ndarray(shape, dtype, self._held.data, start, strides)
        return array

    def release(self, start: int, end: int) -> None:
        """Drop the inflated bytes; views keep them."""
        self._held = None


class Storage(NamedTuple):
    """Storage of a tensor.

    Attributes:
        span: its bytes.
        offset: bytes of the span before the storage (legacy files had views of storages).
        nbytes: its length.
        dtype: its element type, which is the tensor's unless the tensor has another.
    """

    span: Span
    offset: int
    nbytes: int
    dtype: str


def contiguous_strides(shape: tuple[int, ...], *, fortran: bool) -> tuple[int, ...]:
    """Return NumPy's contiguous strides in elements, in row-major or Fortran order."""
    steps = []
    step = 1
    for side in shape if fortran else reversed(shape):
        steps.append(step)
        step *= max(side, 1)
    return tuple(steps if fortran else reversed(steps))


class StoredTensor(LazyTensor):
    """Dense tensor in a storage.

    Args:
        storage: the storage that it views.
        offset: the number of elements before its first element.
        shape: the shape.
        strides: the strides in elements.
        dtype: its element type, with a numpy form.
        conjugated: the values are the conjugates of the stored ones.
        negated: the values are the negatives of the stored ones.

    Raises:
        ValueError: it reaches beyond its storage, or its numbers are invalid.
    """

    __slots__ = (
        "_conjugated",
        "_dtype",
        "_end",
        "_negated",
        "_start",
        "_storage",
        "_strides",
        "info",
    )

    def __init__(
        self,
        storage: Storage,
        offset: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        dtype: str,
        *,
        conjugated: bool = False,
        negated: bool = False,
    ) -> None:
        if not (is_shape(shape) and is_steps(strides) and len(shape) == len(strides)):
            raise ValueError("a tensor has an impossible shape or strides")
        if type(offset) is not int or offset < 0:
            raise ValueError("a tensor has an impossible offset")
        self._dtype = numpy_dtype(dtype, "a tensor")
        size = self._dtype.itemsize
        # The stride of an axis of size 1 is irrelevant, and may be any number.
        self._strides = tuple(
            step * size if side > 1 else size for side, step in zip(shape, strides, strict=True)
        )
        length = extent(shape, size, self._strides)
        self._start = storage.offset + offset * size
        self._end = self._start + length
        if length and self._end > storage.offset + storage.nbytes:
            raise ValueError(f"a tensor of shape {_brief(shape)} reaches beyond its storage")
        self.info = TensorInfo(tuple(shape), dtype)
        if self.info.size * size > max(_SMALL, _MOST_EXPANSION * storage.nbytes):
            raise ValueError(f"a tensor of {storage.nbytes} bytes claims the shape {_brief(shape)}")
        self._storage = storage
        self._conjugated = conjugated
        self._negated = negated

    def read(self) -> np.ndarray[Any, Any]:
        """Return its values: a view of the file, unless they must be computed."""
        array = self._storage.span.array(self._start, self._dtype, self.info.shape, self._strides)
        if self._conjugated:
            array = np.conjugate(array)
        return np.negative(array) if self._negated else array

    def window(self) -> Window | None:
        """Return the tensor for reading in parts, unless it must be computed."""
        if self._conjugated or self._negated:
            return None
        return self._storage.span.window(self._start, self._dtype, self.info.shape, self._strides)

    def prepare(self) -> None:
        """Begin to read it."""
        if self._end > self._start:
            self._storage.span.prepare(self._start, self._end)

    def release(self) -> None:
        """Release its pages."""
        self._storage.span.release(self._start, self._end)

    @property
    def identity(self) -> Hashable:
        """Return its location in the file; None without elements."""
        if not self.info.size:
            return None
        flags = (self._conjugated, self._negated)
        return (id(self._storage.span), self._start, self.info, self._strides, flags)


def _brief(shape: tuple[int, ...]) -> str:
    return str(shape)[:80]

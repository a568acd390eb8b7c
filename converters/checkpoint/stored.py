"""Tensors as torch stores them: a run of bytes, and the offset, shape and strides of each tensor in it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from converters.checkpoint.dtypes import numpy_dtype
from converters.checkpoint.lazy import LazyTensor
from converters.checkpoint.mapped_file import extent
from converters.checkpoint.place import ByteFile, Window
from converters.checkpoint.reader import TensorInfo, is_shape, is_steps
from converters.checkpoint.zip_archive import Member, ZipArchive

# A tensor that repeats its storage (`expand`) may claim any size with a few bytes of file.
_MOST_EXPANSION = 64
_SMALL = 1 << 24  # bytes


class Span(ABC):
    """Bytes of a storage.

    Attributes:
        nbytes: how many there are.
    """

    nbytes: int

    @abstractmethod
    def array(
        self, start: int, dtype: np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> np.ndarray[Any, Any]:
        """A read-only array at `start` bytes from its beginning; strides in bytes."""

    def window(
        self, start: int, dtype: np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> Window | None:
        """What `array` would give, to be read in parts; None: it cannot be, or need not."""
        return None

    def prepare(self, start: int, end: int) -> None:  # noqa: B027 (what lies on a disk needs none)
        """Begin to read these bytes of it, which `array` will be asked for."""

    @abstractmethod
    def release(self, start: int, end: int) -> None:
        """Give the pages between these bytes of it back."""

    def copy(self, start: int, end: int) -> bytes:
        """The bytes between `start` and `end`, which belong to the caller."""
        return self.array(start, np.dtype(np.uint8), (end - start,), (1,)).tobytes()


class FileSpan(Span):
    """A storage that lies in a file as it is.

    Args:
        file: the file.
        start: where it begins there.
        nbytes: its length.
    """

    def __init__(self, file: ByteFile, start: int, nbytes: int) -> None:
        self.file = file
        self.start = start
        self.nbytes = nbytes

    def array(
        self, start: int, dtype: np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> np.ndarray[Any, Any]:
        """A view of the mapped file."""
        return self.file.array(self.start + start, dtype, shape, strides)

    def window(
        self, start: int, dtype: np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> Window | None:
        """As the file has it."""
        return self.file.window(self.start + start, dtype, shape, strides)

    def prepare(self, start: int, end: int) -> None:
        """Begin to read them."""
        self.file.prepare(self.start + start, self.start + end)

    def release(self, start: int, end: int) -> None:
        """Give the pages back."""
        self.file.release(self.start + start, self.start + end)


class BytesSpan(Span):
    """Bytes that are in memory."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.nbytes = len(data)

    def array(
        self, start: int, dtype: np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> np.ndarray[Any, Any]:
        """A view of them; a copy where an element's address would be odd."""
        length = extent(shape, dtype.itemsize, strides)
        if not length:
            return np.zeros(shape, dtype)
        held = np.frombuffer(self.data[start : start + length], np.uint8)
        if held.ctypes.data % dtype.alignment:
            held = held.copy()
        found: np.ndarray[Any, Any] = np.ndarray(shape, dtype, held.data, 0, strides)
        found.flags.writeable = False
        return found

    def release(self, start: int, end: int) -> None:
        """They stay."""


class PartSpan(Span):
    """A run of bytes of another span, which may be told later than its length.

    Args:
        nbytes: its length.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._span: Span | None = None
        self._start = 0

    def settle(self, span: Span, start: int = 0) -> PartSpan:
        """Say where it is, before a tensor of it is read."""
        self._span, self._start = span, start
        return self

    def array(
        self, start: int, dtype: np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> np.ndarray[Any, Any]:
        """As the other span has it."""
        assert self._span is not None, "it was settled"
        return self._span.array(self._start + start, dtype, shape, strides)

    def window(
        self, start: int, dtype: np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> Window | None:
        """As the file has it."""
        return (
            None
            if self._span is None
            else self._span.window(self._start + start, dtype, shape, strides)
        )

    def prepare(self, start: int, end: int) -> None:
        """Begin to read them."""
        if self._span is not None:
            self._span.prepare(self._start + start, self._start + end)

    def release(self, start: int, end: int) -> None:
        """Give its pages back."""
        if self._span is not None:
            self._span.release(self._start + start, self._start + end)


class MemberSpan(Span):
    """A storage that lies in an archive as it is; where it begins there is asked when it is read.

    Its own header, which says so, is before it: of a file that is far away the two are read together.
    """

    def __init__(self, archive: ZipArchive, member: Member) -> None:
        self._archive = archive
        self._member = member
        self.nbytes = member.size
        self.where = str(archive.file.path)

    @cached_property
    def start(self) -> int:
        """Where it begins in the file."""
        return self._archive.place(self._member)

    def array(
        self, start: int, dtype: np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> np.ndarray[Any, Any]:
        """A view of the file."""
        return self._archive.file.array(self.start + start, dtype, shape, strides)

    def window(
        self, start: int, dtype: np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> Window | None:
        """As the file has it."""
        return self._archive.file.window(self.start + start, dtype, shape, strides)

    def prepare(self, start: int, end: int) -> None:
        """Begin to read them, the header with them where all of it is wanted."""
        whole = (start, end) == (0, self.nbytes)
        bounds = self._archive.bounds(self._member)
        self._archive.file.prepare(*(bounds if whole else (self.start + start, self.start + end)))

    def release(self, start: int, end: int) -> None:
        """Give the pages back."""
        self._archive.file.release(self.start + start, self.start + end)


class InflatedSpan(Span):
    """A storage that is compressed in its archive: it is read whole, and dropped when released."""

    def __init__(self, archive: ZipArchive, member: Member) -> None:
        self._archive = archive
        self._member = member
        self._held: np.ndarray[Any, Any] | None = None
        self.nbytes = member.size

    def array(
        self, start: int, dtype: np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> np.ndarray[Any, Any]:
        """A view of the inflated bytes."""
        if self._held is None:
            self._held = self._archive.inflate(self._member)
            self._held.flags.writeable = False
        if 0 in shape:
            return np.zeros(shape, dtype)
        found: np.ndarray[Any, Any] = np.ndarray(shape, dtype, self._held.data, start, strides)
        return found

    def release(self, start: int, end: int) -> None:
        """Drop the inflated bytes; views keep them."""
        self._held = None


class Storage(NamedTuple):
    """What a tensor is a view of.

    Attributes:
        span: its bytes.
        offset: bytes of the span before the storage (legacy files had views of storages).
        nbytes: its length.
        dtype: its element type; that of the tensor, unless that says another.
    """

    span: Span
    offset: int
    nbytes: int
    dtype: str


def contiguous_strides(shape: tuple[int, ...], *, fortran: bool) -> tuple[int, ...]:
    """Of NumPy's arrays, in elements: the last axis next to each other, or the first (Fortran's order)."""
    steps = []
    step = 1
    for side in shape if fortran else reversed(shape):
        steps.append(step)
        step *= max(side, 1)
    return tuple(steps if fortran else reversed(steps))


class StoredTensor(LazyTensor):
    """A dense tensor in a storage.

    Args:
        storage: whose view it is.
        offset: elements before its first one.
        shape: its sides.
        strides: in elements.
        dtype: its element type, with a numpy form.
        conjugated: the values are the conjugates of the stored ones.
        negated: the values are the negatives of the stored ones.

    Raises:
        ValueError: it reaches beyond its storage, or its numbers are not those of a tensor.
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
        # The stride of a side of 1 says nothing, and may be any number.
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
        """Its values: a view of the file, unless they must be computed."""
        array = self._storage.span.array(self._start, self._dtype, self.info.shape, self._strides)
        if self._conjugated:
            array = np.conjugate(array)
        return np.negative(array) if self._negated else array

    def window(self) -> Window | None:
        """The tensor, to be read in parts, unless it must be computed."""
        if self._conjugated or self._negated:
            return None
        return self._storage.span.window(self._start, self._dtype, self.info.shape, self._strides)

    def prepare(self) -> None:
        """Begin to read it."""
        if self._end > self._start:
            self._storage.span.prepare(self._start, self._end)

    def release(self) -> None:
        """Give its pages back."""
        self._storage.span.release(self._start, self._end)

    @property
    def identity(self) -> Hashable:
        """Its place in the file; None without elements, which are nowhere."""
        if not self.info.size:
            return None
        flags = (self._conjugated, self._negated)
        return (id(self._storage.span), self._start, self.info, self._strides, flags)


def _brief(shape: tuple[int, ...]) -> str:
    return str(shape)[:80]

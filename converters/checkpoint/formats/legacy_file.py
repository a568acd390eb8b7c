"""The form of torch.save before torch 1.6: five pickles, then the bytes of every storage in a row.

    magic number, protocol, facts about the machine, the object, the keys of the storages
    for each key: number of elements (8 bytes), elements

https://github.com/pytorch/pytorch/blob/v2.9.1/torch/serialization.py (`_legacy_save`). The storages lie in
the file as they are in memory, so they can be mapped; torch itself reads them all.

`pickle.dump` of tensors writes such a file for each of them, as bytes in its pickle; and a pickle that is no
such file is read as what it is.
"""

from __future__ import annotations

from mmap import mmap
from typing import Any, NamedTuple, Protocol

from converters.checkpoint.formats.torch_names import described_storage, find_name
from converters.checkpoint.inert.records import Constructor, PickleError
from converters.checkpoint.inert.unpickler import Blob, Unpickler
from converters.checkpoint.place import ByteFile, FarPlace
from converters.checkpoint.stored import BytesSpan, FileSpan, PartSpan, Span, Storage

MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
_PROTOCOL = 1001
_COUNT_BYTES = 8
_LONGEST_HEAD = 1 << 16  # bytes of the pickles of one tensor
_NESTED = ("torch.storage", "_load_from_bytes")


class Loaded(NamedTuple):
    """What a pickle holds.

    Attributes:
        value: plain containers, lazy tensors, records.
        unknown: of what there are records.
    """

    value: Any
    unknown: tuple[str, ...] = ()


class _Place(Protocol):
    """Where such a file is: alone on disk, or as bytes in a pickle."""

    @property
    def data(self) -> bytes | mmap:
        """Its bytes, or the first of them."""

    @property
    def size(self) -> int:
        """How many there are."""

    def span(self, start: int, nbytes: int) -> Span:
        """A run of them."""


class _Whole:
    def __init__(self, file: ByteFile, data: bytes | mmap) -> None:
        self.data = data
        self.size = file.size
        self._file = file

    def span(self, start: int, nbytes: int) -> Span:
        return FileSpan(self._file, start, nbytes)


class _Part:
    def __init__(self, content: bytes | bytearray | Blob) -> None:
        self._span = content.span if isinstance(content, Blob) else BytesSpan(memoryview(content))
        self.size = self._span.nbytes
        self.data = self._span.copy(0, min(self.size, _LONGEST_HEAD))

    def span(self, start: int, nbytes: int) -> Span:
        return PartSpan(nbytes).settle(self._span, start)


def read_legacy(file: ByteFile) -> Loaded:
    """What such a file, or one of another pickle, holds; its tensors lazy.

    Raises:
        PickleError: truncated or damaged.
        ForbiddenNameError: it names what has an effect; nothing was executed.
    """
    try:
        for data in file.beginnings():
            try:
                return _read(_Whole(file, data))
            except PickleError:  # what is far away is read in part first
                if len(data) == file.size or not isinstance(file.path, FarPlace):
                    raise
    finally:
        file.release(0, file.size)
    raise PickleError("it begins with more than that can be")


def find(module: str, name: str) -> Any:
    """What stands for a name in a pickle that may hold files of torch.save as bytes.

    Raises:
        ForbiddenNameError: it has an effect when it is called.
    """
    return _LOAD if (module, name) == _NESTED else find_name(module, name)


def _nested(content: Any) -> Any:
    if not isinstance(content, bytes | bytearray | Blob):
        raise ValueError("a storage is made of something else than bytes")
    return _read_storages(_Part(content)).value


_LOAD = Constructor(".".join(_NESTED), _nested)


def _read(place: _Place) -> Loaded:
    machine = Unpickler(place.data, 0, find, spans=place.span)
    first = machine.load()
    if type(first) is int and first == MAGIC_NUMBER:
        return _read_storages(place)
    return Loaded(first, tuple(machine.unknown))


def _read_storages(place: _Place) -> Loaded:
    storages = _Storages(place)
    at = 0
    for expected in (MAGIC_NUMBER, _PROTOCOL):
        value, at = _value(place, at)
        if type(value) is not int or value != expected:
            raise PickleError("it is a pickle, but not of torch.save")
    facts, at = _value(place, at)
    if isinstance(facts, dict) and facts.get("little_endian") is False:
        raise PickleError("it was written on a big-endian machine")
    # A file in a file in a file has no end: what is nested is one tensor.
    names = find if isinstance(place, _Whole) else find_name
    machine = Unpickler(place.data, at, names, storages.of, place.span)
    loaded = machine.load()
    keys, at = _value(place, machine.at)
    storages.settle(keys, at)
    return Loaded(loaded, tuple(machine.unknown))


def _value(place: _Place, start: int) -> tuple[Any, int]:
    machine = Unpickler(place.data, start, find_name)
    return machine.load(), machine.at


class _Storages:
    """The storages that the pickle refers to; where they are is known only after it."""

    def __init__(self, place: _Place) -> None:
        self._place = place
        self._spans: dict[str, PartSpan] = {}
        self._sizes: dict[str, int] = {}

    def of(self, identifier: Any) -> Any:
        """The storage of ("storage", type, key, location, number of elements, part or None).

        The class of ("module", class, file, source) is itself; its source is not looked at.
        """
        if type(identifier) is tuple and len(identifier) == 4 and identifier[0] == "module":
            return identifier[1]
        key, dtype, nbytes, size = described_storage(identifier)
        span = self._spans.setdefault(key, PartSpan(nbytes))
        if span.nbytes != nbytes or self._sizes.setdefault(key, size) != size:
            raise PickleError(f"storage {key[:40]!a} has two sizes")
        part = identifier[5] if len(identifier) > 5 else None
        if part is None:
            return Storage(span, 0, nbytes, dtype)
        _, offset, count = part
        if type(offset) is not int or type(count) is not int or not 0 <= offset <= offset + count:
            raise PickleError("a part of a storage is impossible")
        if (offset + count) * size > nbytes:
            raise PickleError("a part of a storage reaches beyond it")
        return Storage(span, offset * size, count * size, dtype)

    def settle(self, keys: Any, at: int) -> None:
        """Find every storage in the bytes from `at` on, in the order of `keys`."""
        if (
            type(keys) is not list
            or len(keys) != len(self._spans)
            or set(map(str, keys)) != set(self._spans)
        ):
            raise PickleError("its storages are not those of its tensors")
        for key in keys:
            span = self._spans[str(key)]
            if at + _COUNT_BYTES > self._place.size:
                raise PickleError("it ends within a tensor")
            head = self._place.span(at, _COUNT_BYTES).copy(0, _COUNT_BYTES)
            count = int.from_bytes(head, "little", signed=True)
            if count * self._sizes[str(key)] != span.nbytes:
                raise PickleError(
                    f"storage {str(key)[:40]!a} has another size than its tensors say"
                )
            span.settle(self._place.span(at + _COUNT_BYTES, span.nbytes))
            at += _COUNT_BYTES + span.nbytes
        if at > self._place.size:
            raise PickleError("it ends within a tensor")

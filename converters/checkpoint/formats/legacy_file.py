"""Reader of torch.save before torch 1.6: five pickles, then the bytes of every storage.

    magic number, protocol, facts about the machine, the object, the keys of the storages
    for each key: number of elements (8 bytes), elements

https://github.com/pytorch/pytorch/blob/v2.9.1/torch/serialization.py (`_legacy_save`). The storages
have the same bytes in the file as in memory, so they can be mapped; torch itself reads them all.

`pickle.dump` of tensors writes such a file for each tensor, as bytes in its pickle. A pickle that
is not such a file is read as an ordinary pickle.
"""

from __future__ import annotations

from mmap import mmap
from typing import Any, NamedTuple, Protocol

from converters.checkpoint.formats.torch_names import described_storage, find_name
from converters.checkpoint.inert.records import Constructor, PickleError
from converters.checkpoint.inert.unpickler import Blob, Unpickler
from converters.checkpoint.source import ByteFile, RemoteSource
from converters.checkpoint.stored import BytesSpan, FileSpan, PartSpan, Span, Storage

MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
_PROTOCOL = 1001
_COUNT_BYTES = 8
_LONGEST_HEAD = 1 << 16  # maximum bytes of the pickles of one tensor
_NESTED = ("torch.storage", "_load_from_bytes")


class Loaded(NamedTuple):
    """Contents of a pickle.

    Attributes:
        value: plain containers, lazy tensors, records.
        unknown: the classes that became records.
    """

    value: Any
    unknown: tuple[str, ...] = ()


class _Container(Protocol):
    """Container of such a file: a file on disk, or bytes in a pickle."""

    @property
    def data(self) -> bytes | mmap:
        """Return its bytes, or the first of them."""

    @property
    def size(self) -> int:
        """Return the number of bytes."""

    def span(self, start: int, nbytes: int) -> Span:
        """Return a range of its bytes."""


class _WholeFile:
    def __init__(self, file: ByteFile, data: bytes | mmap) -> None:
        self.data = data
        self.size = file.size
        self._file = file

    def span(self, start: int, nbytes: int) -> Span:
        return FileSpan(self._file, start, nbytes)


class _NestedBytes:
    def __init__(self, content: bytes | bytearray | Blob) -> None:
        self._span = content.span if isinstance(content, Blob) else BytesSpan(memoryview(content))
        self.size = self._span.nbytes
        self.data = self._span.copy(0, min(self.size, _LONGEST_HEAD))

    def span(self, start: int, nbytes: int) -> Span:
        return PartSpan(nbytes).settle(self._span, start)


def read_legacy(file: ByteFile) -> Loaded:
    """Return the contents of such a file or of another pickle, with lazy tensors.

    Raises:
        PickleError: truncated or damaged.
        ForbiddenNameError: it names code with an effect; nothing was executed.
    """
    try:
        for data in file.beginnings():
            try:
                return _read(_WholeFile(file, data))
            except PickleError:  # remote files are first read in part
                if len(data) == file.size or not isinstance(file.path, RemoteSource):
                    raise
    finally:
        file.release(0, file.size)
    raise PickleError("it begins with more than that can be")


def find(module: str, name: str) -> Any:
    """Return the stand-in of a name in a pickle that may contain torch.save files as bytes.

    Raises:
        ForbiddenNameError: the name has an effect when called.
    """
    return _LOAD if (module, name) == _NESTED else find_name(module, name)


def _nested(content: Any) -> Any:
    if not isinstance(content, bytes | bytearray | Blob):
        raise ValueError("a storage is made of something else than bytes")
    return _read_storages(_NestedBytes(content)).value


_LOAD = Constructor(".".join(_NESTED), _nested)


def _read(container: _Container) -> Loaded:
    machine = Unpickler(container.data, 0, find, spans=container.span)
    first = machine.load()
    if type(first) is int and first == MAGIC_NUMBER:
        return _read_storages(container)
    return Loaded(first, tuple(machine.unknown))


def _read_storages(container: _Container) -> Loaded:
    storages = _LegacyStorages(container)
    at = 0
    for expected in (MAGIC_NUMBER, _PROTOCOL):
        value, at = _value(container, at)
        if type(value) is not int or value != expected:
            raise PickleError("it is a pickle, but not of torch.save")
    facts, at = _value(container, at)
    if isinstance(facts, dict) and facts.get("little_endian") is False:
        raise PickleError("it was written on a big-endian machine")
    # Nested files could nest without end: a nested file is one tensor.
    names = find if isinstance(container, _WholeFile) else find_name
    machine = Unpickler(container.data, at, names, storages.of, container.span)
    loaded = machine.load()
    keys, at = _value(container, machine.at)
    storages.settle(keys, at)
    return Loaded(loaded, tuple(machine.unknown))


def _value(container: _Container, start: int) -> tuple[Any, int]:
    machine = Unpickler(container.data, start, find_name)
    return machine.load(), machine.at


class _LegacyStorages:
    """Storages that the pickle refers to. Their locations are known only after the pickle."""

    def __init__(self, container: _Container) -> None:
        self._container = container
        self._spans: dict[str, PartSpan] = {}
        self._sizes: dict[str, int] = {}

    def of(self, identifier: Any) -> Any:
        """Return the storage of ("storage", type, key, location, number of elements, part or None).

        The class of ("module", class, file, source) is returned itself; its source is ignored.
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
        """Locate every storage in the bytes from `at` on, in the order of `keys`."""
        if (
            type(keys) is not list
            or len(keys) != len(self._spans)
            or set(map(str, keys)) != set(self._spans)
        ):
            raise PickleError("its storages are not those of its tensors")
        for key in keys:
            span = self._spans[str(key)]
            if at + _COUNT_BYTES > self._container.size:
                raise PickleError("it ends within a tensor")
            head = self._container.span(at, _COUNT_BYTES).copy(0, _COUNT_BYTES)
            count = int.from_bytes(head, "little", signed=True)
            if count * self._sizes[str(key)] != span.nbytes:
                raise PickleError(
                    f"storage {str(key)[:40]!a} has another size than its tensors say"
                )
            span.settle(self._container.span(at + _COUNT_BYTES, span.nbytes))
            at += _COUNT_BYTES + span.nbytes
        if at > self._container.size:
            raise PickleError("it ends within a tensor")

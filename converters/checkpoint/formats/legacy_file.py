"""The form of torch.save before torch 1.6: five pickles, then the bytes of every storage in a row.

    magic number, protocol, facts about the machine, the object, the keys of the storages
    for each key: number of elements (8 bytes), elements

https://github.com/pytorch/pytorch/blob/v2.9.1/torch/serialization.py (`_legacy_save`). The storages lie in
the file as they are in memory, so they can be mapped; torch itself reads them all.
"""

from __future__ import annotations

from mmap import mmap
from typing import Any

from converters.checkpoint.formats.torch_names import described_storage, find_name
from converters.checkpoint.formats.unpickler import PickleError, Unpickler
from converters.checkpoint.place import ByteFile, FarPlace
from converters.checkpoint.stored import FileSpan, Storage

MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
_PROTOCOL = 1001
_COUNT_BYTES = 8


def read_legacy(file: ByteFile) -> Any:
    """What such a file holds, its tensors lazy.

    Raises:
        PickleError: truncated, damaged, or another kind of pickle.
        ForbiddenNameError: it names what is not plain data; nothing was executed.
    """
    for data in file.beginnings():
        try:
            return _read(file, data)
        except PickleError:
            if len(data) == file.size or not isinstance(file.path, FarPlace):
                raise
    raise PickleError("it begins with more than that can be")


def _read(file: ByteFile, data: bytes | mmap) -> Any:
    storages = _Storages(file)
    at = 0
    try:
        for expected in (MAGIC_NUMBER, _PROTOCOL):
            value, at = _value(data, at)
            if type(value) is not int or value != expected:
                raise PickleError("it is a pickle, but not of torch.save")
        facts, at = _value(data, at)
        if isinstance(facts, dict) and facts.get("little_endian") is False:
            raise PickleError("it was written on a big-endian machine")
        machine = Unpickler(data, at, find_name, storages.of)
        loaded = machine.load()
        keys, at = _value(data, machine.at)
        storages.settle(keys, at)
    finally:
        file.release(0, file.size)
    return loaded


def _value(data: bytes | mmap, start: int) -> tuple[Any, int]:
    machine = Unpickler(data, start, find_name)
    return machine.load(), machine.at


class _Storages:
    """The storages that the pickle refers to; where they are is known only after it."""

    def __init__(self, file: ByteFile) -> None:
        self._file = file
        self._spans: dict[str, FileSpan] = {}
        self._sizes: dict[str, int] = {}

    def of(self, identifier: Any) -> Storage:
        """The storage of ("storage", type, key, location, number of elements, part or None)."""
        key, dtype, nbytes, size = described_storage(identifier)
        span = self._spans.setdefault(key, FileSpan(self._file, -1, nbytes))
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
            count = int.from_bytes(self._file.copy(at, at + _COUNT_BYTES), "little", signed=True)
            if count * self._sizes[str(key)] != span.nbytes:
                raise PickleError(
                    f"storage {str(key)[:40]!a} has another size than its tensors say"
                )
            span.start = at + _COUNT_BYTES
            at = span.start + span.nbytes
        if at > self._file.size:
            raise PickleError("it ends within a tensor")

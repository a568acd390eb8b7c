"""Reader of torch.save's zip form (since torch 1.6). TorchScript shares it; its code is not read."""

from __future__ import annotations

from typing import Any

from converters.checkpoint.formats.legacy_file import Loaded, find
from converters.checkpoint.formats.torch_names import described_storage
from converters.checkpoint.inert.records import PickleError
from converters.checkpoint.inert.unpickler import Unpickler
from converters.checkpoint.lazy import LazyTensor
from converters.checkpoint.source import RemoteSource
from converters.checkpoint.stored import FileSpan, InflatedSpan, MemberSpan, Span, Storage
from converters.checkpoint.zip_archive import ZipArchive
from converters.errors import CheckpointDamagedError

_LARGEST_PICKLE = 1 << 30  # bytes, enough for ten million tensors
_LARGEST_INFLATED = 1 << 24


def read_zip(archive: ZipArchive) -> Loaded:
    """Return the contents of a torch.save archive, with lazy tensors.

    Raises:
        CheckpointDamagedError: the archive is incomplete.
        PickleError, ForbiddenNameError: its pickle cannot be read.
    """
    path = archive.file.path
    tops = {name.partition("/")[0] for name in archive.members}
    pickles = [top for top in tops if f"{top}/data.pkl" in archive.members]
    if len(pickles) != 1:
        raise CheckpointDamagedError(
            f"{path} is a zip archive, but not one of torch.save (it has no data.pkl)",
            "name a checkpoint file",
        )
    (top,) = pickles
    order = f"{top}/byteorder"
    if order in archive.members and archive.content(order, 16).strip() != b"little":
        raise CheckpointDamagedError(
            f"{path} was written on a big-endian machine", "save it again on another machine"
        )
    loaded = _pickle(archive, top, "data")
    if f"{top}/constants.pkl" not in archive.members:
        return loaded
    constants = _pickle(archive, top, "constants")
    return Loaded(_scripted(loaded.value, constants.value), loaded.unknown + constants.unknown)


def _pickle(archive: ZipArchive, top: str, name: str) -> Loaded:
    """Return the contents of one pickle of an archive, whose storages are in the folder of its name."""
    file = f"{top}/{name}.pkl"
    limit = _LARGEST_PICKLE if archive.members[file].stored else _LARGEST_INFLATED
    storages = _ZipStorages(archive, f"{top}/{name}")
    machine = Unpickler(archive.content(file, limit), 0, find, storages.of)
    return Loaded(machine.load(), tuple(machine.unknown))


def _scripted(model: Any, constants: Any) -> Any:
    """Return the contents of a TorchScript archive: the module, and the tensors that its code uses.

    A frozen archive has only those tensors, without names: they are not a state dict.
    """
    tensors = {
        f"c{position}": value
        for position, value in enumerate(constants if isinstance(constants, tuple) else ())
        if isinstance(value, LazyTensor)
    }
    return {"model": model, "constants": tensors} if tensors else model


class _ZipStorages:
    """Storages of an archive, each located when a pickle refers to it."""

    def __init__(self, archive: ZipArchive, folder: str) -> None:
        self._archive = archive
        self._folder = folder
        self._spans: dict[str, Span] = {}

    def of(self, identifier: Any) -> Storage:
        """Return the storage of ("storage", type, key, location, number of elements)."""
        key, dtype, nbytes, _ = described_storage(identifier)
        if key not in self._spans:
            self._spans[key] = self._span(key)
        span = self._spans[key]
        if nbytes > span.nbytes:
            raise PickleError(f"storage {key[:40]!a} has {span.nbytes} bytes, not {nbytes}")
        return Storage(span, 0, nbytes, dtype)

    def _span(self, key: str) -> Span:
        member = self._archive.members.get(f"{self._folder}/{key}")
        if member is None:
            raise PickleError(f"storage {key[:40]!a} is not there")
        if member.stored and isinstance(self._archive.file.path, RemoteSource):
            return MemberSpan(self._archive, member)
        if member.stored:
            return FileSpan(self._archive.file, self._archive.content_start(member), member.size)
        return InflatedSpan(self._archive, member)

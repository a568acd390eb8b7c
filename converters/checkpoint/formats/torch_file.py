"""Reading what `torch.save` wrote (`.pt`, `.pth`, `.bin`, `.ckpt`; zip and legacy), without code or torch.

The pickle in it is read by a machine that knows plain values and tensors only; the tensors are views of the
mapped file, in both forms.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from converters.checkpoint.formats.legacy_file import Loaded, find, read_legacy
from converters.checkpoint.formats.refusals import reading
from converters.checkpoint.formats.torch_names import described_storage
from converters.checkpoint.formats.training import Found, find_state_dict
from converters.checkpoint.inert.modules import is_module, read_module
from converters.checkpoint.inert.records import PickleError
from converters.checkpoint.inert.unpickler import Unpickler
from converters.checkpoint.lazy import LazyTensor, TensorsCheckpoint
from converters.checkpoint.mapped_file import MappedFile
from converters.checkpoint.stored import FileSpan, InflatedSpan, Span, Storage
from converters.checkpoint.zip_archive import ZIP_MAGIC, ZipArchive
from converters.errors import CheckpointDamagedError

PICKLE_MAGIC = b"\x80"
_LARGEST_PICKLE = 1 << 30  # bytes; ten million tensors have that much
_LARGEST_INFLATED = 1 << 24


def open_torch_file(path: Path, key: str | None) -> TensorsCheckpoint:
    """The state dict in a file of `torch.save`.

    Args:
        path: the file.
        key: the entry of a training checkpoint that holds the weights; None: the only one.

    Raises:
        CheckpointHoldsCodeError: the pickle names what has an effect.
        CheckpointDamagedError: truncated, or a pickle that torch did not write.
        NotAStateDictError: no state dict, or several and no (or a wrong) `key`.
    """
    file = MappedFile(path)
    with reading(path):
        loaded = load(file)
        file.rest()
        found = find_state_dict(str(path), loaded.value, key)
    return checkpoint_of(str(path), found, loaded.unknown)


def load(file: MappedFile) -> Loaded:
    """What a file of `torch.save`, or another pickle, holds.

    Raises:
        PickleError, ForbiddenNameError: its pickle cannot be read.
        CheckpointDamagedError: it is an archive without a pickle.
    """
    if file.copy(0, min(4, file.size)) == ZIP_MAGIC:
        return read_zip(ZipArchive(file))
    return read_legacy(file)


def checkpoint_of(source: str, found: Found, unknown: Iterable[str]) -> TensorsCheckpoint:
    """The checkpoint of the state dict that was found.

    Args:
        source: what to call it in messages.
        found: its tensors, and the rest.
        unknown: classes of objects in the file that were not built.
    """
    read = {module.kind for module in found.modules.values()}
    of_modules = ("torch.nn.",) if read else ()
    return TensorsCheckpoint(
        source,
        found.tensors,
        others=found.others,
        found=found.where,
        training=lambda: found.rest,
        modules=found.modules,
        options=found.options,
        unbuilt=[name for name in unknown if name not in read and not name.startswith(of_modules)],
    )


def read_zip(archive: ZipArchive) -> Loaded:
    """What a torch.save archive holds, its tensors lazy.

    Raises:
        CheckpointDamagedError: it lacks something.
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
    """What one of the pickles of an archive holds, whose storages are in the folder of its name."""
    file = f"{top}/{name}.pkl"
    limit = _LARGEST_PICKLE if archive.members[file].stored else _LARGEST_INFLATED
    storages = _Storages(archive, f"{top}/{name}")
    machine = Unpickler(archive.content(file, limit), 0, find, storages.of)
    return Loaded(machine.load(), tuple(machine.unknown))


def _scripted(model: Any, constants: Any) -> Any:
    """A TorchScript archive: the module, and tensors that its code uses; a frozen one has those alone."""
    tensors = {
        f"c{position}": value
        for position, value in enumerate(constants if isinstance(constants, tuple) else ())
        if isinstance(value, LazyTensor)
    }
    if not tensors:
        return model
    if is_module(model) and read_module(model)[0]:
        return {"model": model, "constants": tensors}
    return {"frozen": tensors}


class _Storages:
    """The storages of an archive, each found when a pickle refers to it."""

    def __init__(self, archive: ZipArchive, folder: str) -> None:
        self._archive = archive
        self._folder = folder
        self._spans: dict[str, Span] = {}

    def of(self, identifier: Any) -> Storage:
        """The storage that ("storage", type, key, location, number of elements) names."""
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
        if member.stored:
            return FileSpan(self._archive.file, self._archive.place(member), member.size)
        return InflatedSpan(self._archive, member)

"""Reading what `torch.save` wrote (`.pt`, `.pth`, `.bin`, `.ckpt`; zip and legacy), without code or torch.

The pickle in it is read by a machine that knows plain values and tensors only; the tensors are views of the
mapped file, in both forms.
"""

from __future__ import annotations

from typing import Any

from converters.checkpoint.formats.legacy_file import read_legacy
from converters.checkpoint.formats.refusals import SAVE_AGAIN, damaged_pickle, holds_code
from converters.checkpoint.formats.torch_names import described_storage, find_name
from converters.checkpoint.formats.training import find_state_dict
from converters.checkpoint.formats.unpickler import ForbiddenNameError, PickleError, Unpickler
from converters.checkpoint.lazy import TensorsCheckpoint
from converters.checkpoint.mapped_file import open_file
from converters.checkpoint.place import ByteFile, FarPlace, Place
from converters.checkpoint.stored import FileSpan, InflatedSpan, MemberSpan, Span, Storage
from converters.checkpoint.zip_archive import ZIP_MAGIC, ZipArchive
from converters.errors import CheckpointDamagedError, CheckpointHoldsCodeError

PICKLE_MAGIC = b"\x80"
_LARGEST_PICKLE = 1 << 30  # bytes; ten million tensors have that much
_LARGEST_INFLATED = 1 << 26


def open_torch_file(path: Place, key: str | None) -> TensorsCheckpoint:
    """The state dict in a file of `torch.save`.

    Args:
        path: the file.
        key: the entry of a training checkpoint that holds the weights; None: the only one.

    Raises:
        CheckpointHoldsCodeError: the pickle names code, or is a TorchScript archive.
        CheckpointDamagedError: truncated, or a pickle that torch did not write.
        NotAStateDictError: no state dict, or several and no (or a wrong) `key`.
    """
    file = open_file(path)
    loaded = _load(file, path)
    file.rest()
    found = find_state_dict(str(path), loaded, key)
    return TensorsCheckpoint(
        str(path),
        found.tensors,
        others=found.others,
        found=found.where,
        training=lambda: found.rest,
    )


def _load(file: ByteFile, path: Place) -> Any:
    try:
        if file.copy(0, min(4, file.size)) == ZIP_MAGIC:
            return read_zip(ZipArchive(file))
        return read_legacy(file)
    except ForbiddenNameError as error:
        raise holds_code(str(path), str(error)) from None
    except PickleError as error:
        raise damaged_pickle(str(path), str(error)) from None


def read_zip(archive: ZipArchive) -> Any:
    """What a torch.save archive holds, its tensors lazy.

    Raises:
        CheckpointHoldsCodeError: it is TorchScript.
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
    if any(name.startswith((f"{top}/code/", f"{top}/constants.pkl")) for name in archive.members):
        raise CheckpointHoldsCodeError(
            f"{path} is a TorchScript archive, which holds code: not read", SAVE_AGAIN
        )
    order = f"{top}/byteorder"
    if order in archive.members and archive.content(order, 16).strip() != b"little":
        raise CheckpointDamagedError(
            f"{path} was written on a big-endian machine", "save it again on another machine"
        )
    stored = archive.members[f"{top}/data.pkl"].stored
    data = archive.content(f"{top}/data.pkl", _LARGEST_PICKLE if stored else _LARGEST_INFLATED)
    storages = _Storages(archive, top)
    return Unpickler(data, 0, find_name, storages.of).load()


class _Storages:
    """The storages of an archive, each found when a pickle refers to it."""

    def __init__(self, archive: ZipArchive, top: str) -> None:
        self._archive = archive
        self._top = top
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
        member = self._archive.members.get(f"{self._top}/data/{key}")
        if member is None:
            raise PickleError(f"storage {key[:40]!a} is not there")
        if member.stored and isinstance(self._archive.file.path, FarPlace):
            return MemberSpan(self._archive, member)
        if member.stored:
            return FileSpan(self._archive.file, self._archive.place(member), member.size)
        return InflatedSpan(self._archive, member)

"""Reader of files of `torch.save` (`.pt`, `.pth`, `.bin`, `.ckpt`; zip and legacy), without code or torch.

It also reads other pickles (`.pkl` of arrays or tensors), TorchScript archives and archives of
torch.export. A restricted machine reads the pickle: it knows only plain values, tensors and
records. In all forms the tensors are views of the mapped file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from converters.checkpoint.formats.exported_file import is_exported, read_exported
from converters.checkpoint.formats.legacy_file import Loaded, read_legacy
from converters.checkpoint.formats.refusals import reading
from converters.checkpoint.formats.torch_zip import read_zip
from converters.checkpoint.formats.training import StateDictMatch, find_state_dict
from converters.checkpoint.inert.modules import SCRIPTED
from converters.checkpoint.inert.records import printable
from converters.checkpoint.lazy import TensorsCheckpoint
from converters.checkpoint.mapped_file import open_file
from converters.checkpoint.source import ByteFile, Source
from converters.checkpoint.zip_archive import ZIP_MAGIC, ZipArchive

PICKLE_MAGIC = b"\x80"
# Modules of plain value classes, which are not reported as unbuilt_classes.
_PLAIN = ("builtins.", "__builtin__.", "datetime.", "functools.", "numpy.")


def open_torch_file(path: Source, key: str | None) -> TensorsCheckpoint:
    """Open the state dict in a file of `torch.save`.

    Args:
        path: the file.
        key: the entry of a training checkpoint that holds the weights; None for the only entry.

    Raises:
        CheckpointHoldsCodeError: the pickle names code with an effect.
        CheckpointDamagedError: the file is truncated, or its pickle was not written by torch.
        NotAStateDictError: no state dict, or several and no (or a wrong) `key`.
    """
    file = open_file(path)
    with reading(path):
        loaded = load(file)
        file.rest()
        match = find_state_dict(str(path), loaded.value, key)
    return checkpoint_of(str(path), match, loaded.unknown)


def load(file: ByteFile) -> Loaded:
    """Return the contents of a file of `torch.save`, or of another pickle.

    Raises:
        PickleError, ForbiddenNameError: its pickle cannot be read.
        CheckpointDamagedError: the file is an archive without a pickle.
    """
    if file.copy(0, min(4, file.size)) == ZIP_MAGIC:
        archive = ZipArchive(file)
        return read_exported(archive) if is_exported(archive) else read_zip(archive)
    return read_legacy(file)


def checkpoint_of(source: str, match: StateDictMatch, unknown: Iterable[str]) -> TensorsCheckpoint:
    """Return the checkpoint of a state dict.

    Args:
        source: the name of the checkpoint in messages.
        match: the state dict and its surroundings.
        unknown: classes of objects in the file that were not built.
    """
    return TensorsCheckpoint(
        source,
        match.tensors,
        others=match.others,
        entry=match.where,
        training=lambda: match.rest,
        modules=match.modules,
        options=match.options,
        unbuilt=unbuilt_classes(unknown, {module.kind for module in match.modules.values()}),
    )


def unbuilt_classes(unknown: Iterable[str], read: Collection[str] = ()) -> list[str]:
    """Return the unbuilt_classes classes that the user should know of.

    Args:
        unknown: classes that were not built.
        read: classes of the modules that were read as layers.
    """
    known = (*_PLAIN, "torch.nn.", SCRIPTED) if read else _PLAIN
    return [printable(name) for name in unknown if name not in read and not name.startswith(known)]

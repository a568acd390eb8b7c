"""Reading what `torch.save` wrote (`.pt`, `.pth`, `.bin`, `.ckpt`; zip and legacy), without code or torch.

So are other pickles read (`.pkl` of arrays or tensors), TorchScript archives and those of torch.export. The
pickle in them is read by a machine that knows plain values, tensors and records only; the tensors are views
of the mapped file, in all forms.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from converters.checkpoint.formats.exported_file import is_exported, read_exported
from converters.checkpoint.formats.legacy_file import Loaded, read_legacy
from converters.checkpoint.formats.refusals import reading
from converters.checkpoint.formats.torch_zip import read_zip
from converters.checkpoint.formats.training import Found, find_state_dict
from converters.checkpoint.inert.modules import SCRIPTED
from converters.checkpoint.inert.records import printable
from converters.checkpoint.lazy import TensorsCheckpoint
from converters.checkpoint.mapped_file import open_file
from converters.checkpoint.place import ByteFile, Place
from converters.checkpoint.zip_archive import ZIP_MAGIC, ZipArchive

PICKLE_MAGIC = b"\x80"
# Where the classes of plain values are; that these were not built is no news.
_PLAIN = ("builtins.", "__builtin__.", "datetime.", "functools.", "numpy.")


def open_torch_file(path: Place, key: str | None) -> TensorsCheckpoint:
    """The state dict in a file of `torch.save`.

    Args:
        path: the file.
        key: the entry of a training checkpoint that holds the weights; None: the only one.

    Raises:
        CheckpointHoldsCodeError: the pickle names what has an effect.
        CheckpointDamagedError: truncated, or a pickle that torch did not write.
        NotAStateDictError: no state dict, or several and no (or a wrong) `key`.
    """
    file = open_file(path)
    with reading(path):
        loaded = load(file)
        file.rest()
        found = find_state_dict(str(path), loaded.value, key)
    return checkpoint_of(str(path), found, loaded.unknown)


def load(file: ByteFile) -> Loaded:
    """What a file of `torch.save`, or another pickle, holds.

    Raises:
        PickleError, ForbiddenNameError: its pickle cannot be read.
        CheckpointDamagedError: it is an archive without a pickle.
    """
    if file.copy(0, min(4, file.size)) == ZIP_MAGIC:
        archive = ZipArchive(file)
        return read_exported(archive) if is_exported(archive) else read_zip(archive)
    return read_legacy(file)


def checkpoint_of(source: str, found: Found, unknown: Iterable[str]) -> TensorsCheckpoint:
    """The checkpoint of the state dict that was found.

    Args:
        source: what to call it in messages.
        found: its tensors, and the rest.
        unknown: classes of objects in the file that were not built.
    """
    return TensorsCheckpoint(
        source,
        found.tensors,
        others=found.others,
        found=found.where,
        training=lambda: found.rest,
        modules=found.modules,
        options=found.options,
        unbuilt=unbuilt(unknown, {module.kind for module in found.modules.values()}),
    )


def unbuilt(unknown: Iterable[str], read: Collection[str] = ()) -> list[str]:
    """The classes of objects in a file that are news to whoever reads it.

    Args:
        unknown: those that were not built.
        read: those of the modules that were read as layers.
    """
    known = (*_PLAIN, "torch.nn.", SCRIPTED) if read else _PLAIN
    return [printable(name) for name in unknown if name not in read and not name.startswith(known)]

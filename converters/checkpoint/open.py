"""Detection of a checkpoint's format by content, and its opening."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from converters.checkpoint.folder import file_in_folder, require_alone
from converters.checkpoint.formats.distributed import METADATA, open_distributed
from converters.checkpoint.formats.npz_file import SUFFIX as ARRAY_SUFFIX
from converters.checkpoint.formats.npz_file import open_npz
from converters.checkpoint.formats.safetensors_file import SafetensorsFile
from converters.checkpoint.formats.sharded import INDEX_SUFFIX, ShardedCheckpoint
from converters.checkpoint.formats.torch_file import PICKLE_MAGIC, open_torch_file
from converters.checkpoint.mapped_file import open_file
from converters.checkpoint.quantized import require_not_quantized
from converters.checkpoint.reader import Checkpoint, read_start
from converters.checkpoint.source import Source, is_folder, size_of, source_exists
from converters.checkpoint.zip_archive import ZIP_MAGIC, ZipArchive
from converters.errors import CheckpointDamagedError, NotAStateDictError

_PICKLES = (".pkl", ".pickle")  # pickles of protocol 0 can begin with anything
_SETTINGS = "config.json"  # in a Hugging Face folder
_LENGTH_BYTES = 8  # a safetensors file begins with the length of its header
_TAR_MAGIC = slice(257, 262), b"ustar"
_FOREIGN = {
    b"GGUF": "a GGUF file (llama.cpp's)",
    b"\x89HDF": "an HDF5 file (Keras's)",
    b"\x1f\x8b": "compressed by gzip",
    b"BZh": "compressed by bzip2",
    b"\xfd7zX": "compressed by xz",
    b"\x28\xb5\x2f\xfd": "compressed by zstd",
}


def open_checkpoint(path: Source, key: str | None = None, *, as_stored: bool = False) -> Checkpoint:
    """Open a torch checkpoint without loading a tensor.

    Args:
        path: a `.safetensors` file, a file of `torch.save` (also of a whole module), of torch.jit or
            torch.export, a pickle of tensors or arrays, an `.npz`, a `*.index.json` with its shards beside
            it, a folder with one of these under its Hugging Face name, or a folder of
            torch.distributed.checkpoint.
        key: the entry of a training checkpoint that holds the weights: names joined by dots, "."
            for the whole. None for the only entry.
        as_stored: also open a checkpoint that looks quantized, with its numbers unchanged.

    Raises:
        CheckpointNotFoundError: the path does not exist, or is a folder without a checkpoint.
        CheckpointDamagedError: the file is empty, truncated, unreadable or of an unknown format.
        CheckpointHoldsCodeError: the file is a pickle that names code with an effect; nothing
            was executed.
        NotAStateDictError: it holds no state dict, or several.
        UnsupportedDtypeError: it looks quantized, or has an element type without a numpy form.
    """
    with _without_collector():
        checkpoint = _opened(path, key)
        if not as_stored:
            require_not_quantized(checkpoint)
    return checkpoint


@contextmanager
def _without_collector() -> Iterator[None]:
    """Pause the garbage collector, which takes half of the time of opening a million tensors."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _opened(path: Source, key: str | None) -> Checkpoint:
    if is_folder(path):
        if source_exists(path / METADATA):
            return open_distributed(path, key)
        return _opened(file_in_folder(path), key)
    if path.name.endswith(INDEX_SUFFIX):
        read_start(path, 1)
        return ShardedCheckpoint(path, lambda shard: _opened(shard, key))
    require_alone(path)
    start = read_start(path, 512)
    is_pickle = start.startswith((ZIP_MAGIC, PICKLE_MAGIC)) or path.suffix in _PICKLES
    if is_pickle and not _may_be_safetensors(path, start[:8]):
        if not _is_npz(path, start):
            return open_torch_file(path, key)
        checkpoint: Checkpoint = open_npz(ZipArchive(open_file(path)))
    else:
        _require_native(path, start)
        checkpoint = SafetensorsFile(path)
    if key is not None:
        raise NotAStateDictError(
            f'{path} is not a training checkpoint, so it has no key "{key}"', "leave the key out"
        )
    return checkpoint


def _may_be_safetensors(path: Source, start: bytes) -> bool:
    """Whether the first bytes are a header length that fits: a pickle's 0x80 may begin one, too."""
    return 8 + int.from_bytes(start, "little") <= size_of(path)


def _is_npz(path: Source, start: bytes) -> bool:
    """Whether the first member is an array; the archive itself may still be damaged."""
    if not start.startswith(ZIP_MAGIC):
        return False
    length = int.from_bytes(start[26:28], "little")
    return path.suffix == ".npz" or start[30 : 30 + length].endswith(ARRAY_SUFFIX.encode())


def _require_native(path: Source, start: bytes) -> None:
    place, magic = _TAR_MAGIC
    forms = [form for mark, form in _FOREIGN.items() if start.startswith(mark)]
    if start[place] == magic:
        forms.append("a tar archive (torch before 0.1.10 wrote such)")
    if forms:
        raise CheckpointDamagedError(
            f"{path} is {forms[0]}, not a checkpoint that can be read",
            "unpack it, or save it again as safetensors",
        )
    if _is_text(start):
        kind = "a JSON file" if start.lstrip().startswith((b"{", b"[")) else "a text file"
        is_settings = path.name == _SETTINGS
        what = "the settings of a model" if is_settings else kind
        beside = ", or the folder that has both" if is_settings else ""
        raise CheckpointDamagedError(
            f"{path} is {what}, not a checkpoint", f"name the file with the weights{beside}"
        )


def _is_text(start: bytes) -> bool:
    """Whether the first bytes are text: those of a pickle or a header's length are not."""
    # The last character may be cut in two.
    text = start.decode("utf-8", "replace").removesuffix("\ufffd")
    return len(start) >= _LENGTH_BYTES and all(
        character.isprintable() or character.isspace() for character in text
    )

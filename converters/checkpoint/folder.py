"""Search of a folder for its checkpoint; without one, a description of its other files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from converters.checkpoint.formats.sharded import INDEX_SUFFIX
from converters.checkpoint.source import RemoteSource, Source, file_names
from converters.errors import CheckpointDamagedError, CheckpointNotFoundError

# In the order of preference of transformers' from_pretrained, then of diffusers.
FOLDER_NAMES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "diffusion_pytorch_model.safetensors",
    "diffusion_pytorch_model.safetensors.index.json",
    "diffusion_pytorch_model.bin",
)
_SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".npz")
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.(safetensors|bin)")
_ADAPTER = re.compile(
    r"\.(lora|hada|lokr|oft|boft|vera|ia3)_|\.ln_tuning_layers\.|^prompt_embeddings$"
)
_PARALLEL = re.compile(r"consolidated\.(\d\d)\.pth")
_SHOWN = 5
# Common other files in such folders: (end of the name, description, remedy).
_OTHERS = (
    (".incomplete", "a download that has not ended", "download it again"),
    (".gguf", "GGUF (llama.cpp's, most often quantized)", "take the checkpoint it was made from"),
    (".h5", "HDF5 (TensorFlow's, Keras's)", "take the weights of torch, if there are any"),
    (".msgpack", "Flax's own form", "it needs no conversion: flax.serialization reads it"),
    (".onnx", "ONNX", "take the checkpoint it was made from"),
    ("model_index.json", "a pipeline of diffusers", "name one of its folders (unet, vae, …)"),
    ("zero_to_fp32.py", "DeepSpeed's", "run it: it writes one pytorch_model.bin of all parts"),
    (
        "adapter_config.json",
        "an adapter of PEFT",
        "name its file, or merge it into its model first",
    ),
)


def file_in_folder(folder: Source) -> Source:
    """Return the checkpoint of a folder: the file with a Hugging Face name, or the only candidate.

    Raises:
        CheckpointNotFoundError: there is no checkpoint, or several.
        CheckpointDamagedError: there are shards without their index.
    """
    for name in FOLDER_NAMES:
        if (folder / name).is_file():
            return folder / name
    try:
        files = file_names(folder)
    except OSError as error:
        raise CheckpointNotFoundError(
            f"{folder} cannot be read ({error.strerror})", "check its permissions"
        ) from None
    names = [name for name in files if name.endswith((*_SUFFIXES, INDEX_SUFFIX))]
    indices = [name for name in names if name.endswith(INDEX_SUFFIX)]
    for choice in (names, indices):
        if len(choice) == 1:
            _require_index(folder, choice[0])
            return folder / choice[0]
    if not files and isinstance(folder, RemoteSource):
        folder.require_there()
    for name in names:
        _require_index(folder, name)
    description, hint = _describe_contents(folder, files, names)
    raise CheckpointNotFoundError(
        f"{folder} holds no checkpoint under a known name ({description})", hint
    )


def _require_index(folder: Source, name: str) -> None:
    """Refuse a shard without its index, which is not the folder's complete checkpoint."""
    shard = _SHARD.search(name)
    if shard and int(shard[2]) > 1:
        raise CheckpointDamagedError(
            f"{folder} has {name}, one of {int(shard[2])} shards, and no index of them",
            f"download the *{INDEX_SUFFIX} and all shards into it",
        )


def partial_checkpoint_notes(source: str, keys: Iterable[str]) -> list[str]:
    """Return notes for the user about a checkpoint that is only a part of a model."""
    notes = []
    shard = _SHARD.search(source)
    if shard and int(shard[2]) > 1:
        notes.append(f"this is one of {int(shard[2])} shards: the other keys are not in it")
    adapter = next((key for key in keys if _ADAPTER.search(key)), None)
    if adapter is not None:
        notes.append(
            f"{adapter} is an adapter's (LoRA's kind): what it adds to its model's weights is in none of "
            "them; merge it first (PEFT: merge_and_unload), else it is converted as it is, beside them"
        )
    return notes


def require_alone(path: Source) -> None:
    """Refuse a file that is one of several with parts of the same arrays.

    Raises:
        CheckpointDamagedError: the file is such a part.
    """
    part = _PARALLEL.fullmatch(path.name)
    if part is None:
        return
    other = "consolidated.00.pth" if int(part[1]) else "consolidated.01.pth"
    if path.with_name(other).is_file():
        raise CheckpointDamagedError(
            f"{path} is one of several files with parts of each array ({other} is beside it)",
            "merge them first, or use the checkpoint of the model in Hugging Face form",
        )


def _describe_contents(
    folder: Source, files: Sequence[str], names: Sequence[str]
) -> tuple[str, str]:
    """Describe the contents of a folder without a checkpoint, and a remedy."""
    for end, what, hint in _OTHERS:
        of_kind = [name for name in files if name.endswith(end)]
        if of_kind:
            return f"{of_kind[0]}: {what}", hint
    if names:
        return f"it has {', '.join(names[:_SHOWN])}", "name the checkpoint file itself"
    subfolders = [] if isinstance(folder, RemoteSource) else _folders_with_checkpoint(folder)
    if subfolders:
        return f"its folders {', '.join(subfolders[:_SHOWN])} do", "name one of them"
    return f"looked for {', '.join(FOLDER_NAMES)}", "name the checkpoint file itself"


def _folders_with_checkpoint(folder: Path) -> list[str]:
    """Return the subfolders that hold a checkpoint under a known name, such as those of a Trainer's run."""
    subfolders = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    return [
        name
        for name in subfolders
        if any((folder / name / file_name).is_file() for file_name in FOLDER_NAMES)
    ]

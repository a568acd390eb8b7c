"""A torch checkpoint into a Flax pytree: plan, then write; every key accounted for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from converters.atomic import require_writable
from converters.checkpoint import (
    Checkpoint,
    Format,
    Leaf,
    Pytree,
    StateDict,
    nest,
    open_checkpoint,
    write_pytree,
)
from converters.checkpoint.sharded import INDEX_SUFFIX
from converters.errors import ModelRequiredError, NotAStateDictError, OutputError, RefusedKeysError
from converters.mapping import Outcome, Plan, make_plan, read_slots
from converters.model import load_config_model, load_model, require_module

if TYPE_CHECKING:
    from torch import Tensor, nn

CheckpointLike: TypeAlias = "Path | str | Mapping[str, Tensor]"
ModelLike: TypeAlias = "str | nn.Module | None"

# What training wrappers put before every key.
_WRAPPERS = {
    "module.": "DataParallel or DistributedDataParallel: save model.module.state_dict()",
    "_orig_mod.": "torch.compile: save model._orig_mod.state_dict()",
}


@dataclass(frozen=True)
class Conversion:
    """A conversion that was written.

    Attributes:
        plan: every key and what became of it.
        output: the file written.
        format: "safetensors" or "msgpack".
        parameters: number of elements written, buffers included.
        size: number of bytes of those elements.
    """

    plan: Plan
    output: Path
    format: Format
    parameters: int
    size: int


def plan(checkpoint: CheckpointLike, *, model: ModelLike = None, key: str | None = None) -> Plan:
    """What a conversion would do; writes nothing and, but for legacy `torch.save`, reads headers.

    Refused keys are rows of the plan here, not an error.

    Args:
        checkpoint: a file, a Hugging Face folder, or a state dict in memory.
        model: whose tree of modules says what each key is: `pkg.mod:factory`,
            `path/file.py:factory` or an `nn.Module` on any device. None: the `config.json` of the
            folder.
        key: the entry that holds the weights, in a training checkpoint of `torch.save`.

    Raises:
        ConversionError: the checkpoint or the model cannot be read; the subclass says why.
    """
    return _plan(_open(checkpoint, key), _model(checkpoint, model))


def convert(
    checkpoint: Path | str,
    *,
    model: ModelLike = None,
    output: Path | str | None = None,
    format: Format | None = None,  # noqa: A002 (the word users know)
    key: str | None = None,
    overwrite: bool = False,
) -> Conversion:
    """Convert a torch checkpoint into a pytree for `flax.linen`, on disk; dtypes and bits are kept.

        convert("model.pt", model="net.py:Net", output="net.flax.safetensors")

    Args:
        checkpoint: a `.safetensors` file, a file of `torch.save`, a `*.index.json` or a Hugging
            Face folder.
        model: as for `plan`.
        output: the file to write; None: `NAME.flax.safetensors` (or `.msgpack`) in the current
            directory, NAME being the checkpoint's file or folder.
        format: "safetensors" (one tensor in memory at a time) or "msgpack" (all of them); None:
            msgpack if the output is named so, else safetensors.
        key: as for `plan`.
        overwrite: whether an existing output may be replaced.

    Raises:
        RefusedKeysError: some keys have no place; all of them are in its plan. Nothing is written.
        ConversionError: the checkpoint or model cannot be read, or the output not be written; the
            subclass says which. Nothing that looks complete is left.
    """
    source = Path(checkpoint)
    if format is None:
        named_msgpack = output is not None and Path(output).suffix == ".msgpack"
        format = "msgpack" if named_msgpack else "safetensors"  # noqa: A001
    target = default_output(source, format) if output is None else Path(output)
    require_writable(target, overwrite=overwrite)
    if os.path.exists(target) and os.path.exists(source) and target.samefile(source):
        raise OutputError(f"{target} is the checkpoint itself", "choose another output")
    opened = _open(source, key)
    done = _require_complete(_plan(opened, _model(source, model)), opened)
    leaves = _leaves(done, opened)
    write_pytree(target, leaves, format, overwrite=overwrite)
    return Conversion(
        done,
        target,
        format,
        parameters=sum(leaf.info.size for leaf in leaves),
        size=sum(leaf.info.nbytes for leaf in leaves),
    )


def convert_to_pytree(
    checkpoint: CheckpointLike, *, model: ModelLike = None, key: str | None = None
) -> Pytree:
    """The pytree itself, `{"params": {…}, …}` with numpy leaves, and nothing written.

    The arrays may be views of the checkpoint (read-only ones of a mapped file).

    Raises:
        RefusedKeysError: some keys have no place; all of them are in its plan.
        ConversionError: the checkpoint or model cannot be read; the subclass says why.
    """
    opened = _open(checkpoint, key)
    done = _require_complete(_plan(opened, _model(checkpoint, model)), opened)
    return nest((leaf.path, leaf.read()) for leaf in _leaves(done, opened))


def default_output(checkpoint: Path, format: Format) -> Path:  # noqa: A002 (as in convert)
    """`NAME.flax.safetensors` or `NAME.flax.msgpack` in the current directory."""
    resolved = checkpoint.resolve()  # "." has no name of its own
    # model.safetensors.index.json is called model, net.v2.pt is called net.v2.
    stem = Path(resolved.name.removesuffix(INDEX_SUFFIX)).stem
    name = resolved.name if resolved.is_dir() else stem
    return Path(f"{name or 'checkpoint'}.flax.{format}")


def _open(checkpoint: CheckpointLike, key: str | None) -> Checkpoint:
    if isinstance(checkpoint, Mapping):
        if key is not None:
            raise NotAStateDictError("a key is for files, not for a state dict", "pass its entry")
        return StateDict("the state dict", checkpoint)
    return open_checkpoint(Path(checkpoint), key)


def _model(checkpoint: CheckpointLike, model: ModelLike) -> Any:
    if isinstance(model, str):
        return load_model(model)
    if model is not None:
        return require_module("the model", model)
    if not isinstance(checkpoint, Mapping):
        path = Path(checkpoint)
        folder = path if path.is_dir() else path.parent
        # A file of a Hugging Face folder belongs to the configuration beside it; if it does not
        # after all, its keys and shapes are refused.
        if (folder / "config.json").is_file():
            return load_config_model(folder)
    named = "the state dict" if isinstance(checkpoint, Mapping) else str(checkpoint)
    raise ModelRequiredError(
        f"{named} has no config.json that says which layers its keys belong to",
        "pass --model pkg.mod:factory or path/file.py:factory",
    )


def _plan(checkpoint: Checkpoint, model: Any) -> Plan:
    return make_plan(checkpoint.source, checkpoint.infos, read_slots(model))


def _leaves(plan: Plan, checkpoint: Checkpoint) -> list[Leaf]:
    return [Leaf(leaf.path, leaf.info, partial(leaf.read, checkpoint.read)) for leaf in plan.leaves]


def _require_complete(plan: Plan, checkpoint: Checkpoint) -> Plan:
    """The plan, if nothing in it is refused and tied tensors are indeed equal.

    Raises:
        RefusedKeysError: something is.
    """
    source_of = {row.targets: row.key for row in plan.mapped}
    rows = tuple(
        row.refuse(f"tied to {source_of[row.targets]}, but its values differ")
        if row.outcome is Outcome.TIED and not _equal(checkpoint, row.key, source_of[row.targets])
        else row
        for row in plan.rows
    )
    plan = replace(plan, rows=rows)
    if plan.refused:
        raise RefusedKeysError(plan, _remedy(plan))
    return plan


def _equal(checkpoint: Checkpoint, key: str, other: str) -> bool:
    """Bit for bit: NaN equals itself, and 0.0 is not -0.0."""
    one, two = (np.ascontiguousarray(checkpoint.read(name)) for name in (key, other))
    return one.dtype == two.dtype and np.array_equal(
        one.reshape(-1).view(np.uint8), two.reshape(-1).view(np.uint8)
    )


def _remedy(plan: Plan) -> str:
    stored = [row.key for row in plan.rows if row.shape is not None]
    for prefix, cause in _WRAPPERS.items():
        if stored and all(key.startswith(prefix) for key in stored):
            return f'every key begins with "{prefix}", the mark of {cause}'
    return "pass the model that the checkpoint was saved from, configured alike"

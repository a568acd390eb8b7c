"""A torch checkpoint into a Flax pytree: plan, then write; every key accounted for."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Unpack

import numpy as np

from converters.atomic import require_writable
from converters.checkpoint import Checkpoint, Format, Leaf, Pytree, nest, write_pytree
from converters.checkpoint.sharded import INDEX_SUFFIX
from converters.errors import OutputError, RefusedKeysError
from converters.mapping import Outcome, Plan
from converters.planning import CheckpointLike, PlanOptions, opened, planned

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


def plan(checkpoint: CheckpointLike, **options: Unpack[PlanOptions]) -> Plan:
    """What a conversion would do; writes nothing and, but for legacy `torch.save`, reads headers.

    Refused keys are rows of the plan here, not an error.

    Args:
        checkpoint: a file, a Hugging Face folder, or a state dict in memory.
        **options: `converters.planning.PlanOptions`.

    Raises:
        ConversionError: the checkpoint or the model cannot be read; the subclass says why.
    """
    return planned(checkpoint, opened(checkpoint, options), options)


def convert(
    checkpoint: Path | str,
    *,
    output: Path | str | None = None,
    format: Format | None = None,  # noqa: A002 (the word users know)
    overwrite: bool = False,
    **options: Unpack[PlanOptions],
) -> Conversion:
    """Convert a torch checkpoint into a pytree for Flax, on disk; dtypes and bits are kept.

        convert("model.pt", model="net.py:Net", output="net.flax.safetensors")

    Args:
        checkpoint: a `.safetensors` file, a file of `torch.save`, a `*.index.json` or a Hugging
            Face folder.
        output: the file to write; None: `NAME.flax.safetensors` (or `.msgpack`) in the current
            directory, NAME being the checkpoint's file or folder.
        format: "safetensors" (one tensor in memory at a time) or "msgpack" (all of them); None:
            msgpack if the output is named so, else safetensors.
        overwrite: whether an existing output may be replaced.
        **options: `converters.planning.PlanOptions`.

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
    read = opened(source, options)
    done = _require_complete(planned(source, read, options), read)
    leaves = _leaves(done, read)
    write_pytree(target, leaves, format, overwrite=overwrite)
    return Conversion(
        done,
        target,
        format,
        parameters=sum(leaf.info.size for leaf in leaves),
        size=sum(leaf.info.nbytes for leaf in leaves),
    )


def convert_to_pytree(checkpoint: CheckpointLike, **options: Unpack[PlanOptions]) -> Pytree:
    """The pytree itself, `{"params": {…}, …}` with numpy leaves, and nothing written.

    The arrays may be views of the checkpoint (read-only ones of a mapped file). For nnx the
    positions of lists are texts ("0"): `nnx.restore_int_paths` makes them numbers.

    Raises:
        RefusedKeysError: some keys have no place; all of them are in its plan.
        ConversionError: the checkpoint or model cannot be read; the subclass says why.
    """
    read = opened(checkpoint, options)
    done = _require_complete(planned(checkpoint, read, options), read)
    return nest((leaf.path, leaf.read()) for leaf in _leaves(done, read))


def default_output(checkpoint: Path, format: Format) -> Path:  # noqa: A002 (as in convert)
    """`NAME.flax.safetensors` or `NAME.flax.msgpack` in the current directory."""
    resolved = checkpoint.resolve()  # "." has no name of its own
    # model.safetensors.index.json is called model, net.v2.pt is called net.v2.
    stem = Path(resolved.name.removesuffix(INDEX_SUFFIX)).stem
    name = resolved.name if resolved.is_dir() else stem
    return Path(f"{name or 'checkpoint'}.flax.{format}")


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

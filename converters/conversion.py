"""Conversion of a torch checkpoint to a Flax pytree: plan, then write, accounting for every key."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from converters.checkpoint import Checkpoint, Format, Pytree, nest
from converters.checkpoint.formats.sharded import INDEX_SUFFIX
from converters.checkpoint.pytree import PytreeLeaf
from converters.checkpoint.reader import TensorInfo
from converters.checkpoint.source import RemoteSource, Source
from converters.errors import (
    CheckpointInMemoryError,
    HostsError,
    OptimizerError,
    OutputError,
    RefusedKeysError,
    ShardingError,
)
from converters.hosts import ALONE, Hosts
from converters.kept import kept_path, writing_kept
from converters.mapping import Outcome, Plan
from converters.mapping.paths import Api
from converters.optimizer.convert import OptimizerConversion, convert_optimizer
from converters.output import (
    Partition,
    WrittenOutput,
    leaves_of,
    load_rules,
    parse_mesh,
    partition,
    place_on_mesh,
    recipe_of,
    require_output,
    write_pytree,
)
from converters.output.stream import AHEAD_BYTES
from converters.planning import CheckpointLike, PlannedConversion, planned
from converters.remote.names import ResolvedName, is_remote, resolve_name
from converters.remote.region import region_warning
from converters.remote.writing import destination
from converters.request import ConversionRequest, OptimizerRequest, PlanKeywords, PlanOptions

_FORMATS: dict[str, Format] = {
    ".safetensors": "safetensors",
    ".msgpack": "msgpack",
    ".orbax": "orbax",
}
# Bytes compared at once, for two tensors that must be equal.
_COMPARED = 64 << 20


@dataclass(frozen=True)
class Conversion:
    """Finished conversion.

    Attributes:
        plan: the outcome of every key.
        output: the file written.
        kept: the file beside the output, for the way back to torch (`converters.reverse`).
        api: whose names the paths are made of.
        format: "safetensors", "msgpack" or "orbax".
        written: the content of the output.
        notes: other notes for the user, one line each.
        options: the options of the training run, as far as the checkpoint has them, as plain values
            by entry name.
        optimizer: the optimizer whose state was written too, or None.
    """

    plan: Plan
    output: Source
    kept: Source
    api: Api
    format: Format
    written: WrittenOutput
    notes: tuple[str, ...]
    options: Mapping[str, Any]
    optimizer: OptimizerConversion | None = None

    @property
    def parameters(self) -> int:
        """Number of elements written, buffers included."""
        return sum(leaf.info.size for leaf in self.plan.leaves)

    @property
    def size(self) -> int:
        """Number of bytes of those elements."""
        return self.written.nbytes


def plan(checkpoint: CheckpointLike, **options: Unpack[PlanKeywords]) -> Plan:
    """Plan a conversion; write nothing and read headers only.

    Refused keys are rows of the plan here, not an error.

    Args:
        checkpoint: a file, a folder, or a state dict in memory.
        **options: the fields of `converters.request.PlanOptions`.

    Raises:
        ConversionError: the checkpoint or the model cannot be read; the subclass says why.
    """
    return planned(checkpoint, PlanOptions(**options)).plan


def convert(
    checkpoint: Source | ResolvedName | str,
    *,
    output: Source | str | None = None,
    format: Format | None = None,  # noqa: A002 (the word users know)
    overwrite: bool = False,
    resume: bool = False,
    shard_bytes: int | None = None,
    mesh: str | None = None,
    spec: Path | str | None = None,
    fail_on_nonfinite: bool = False,
    digests: bool = False,
    optimizer: Path | str | None = None,
    optimizer_key: str | None = None,
    optimizer_kind: str | None = None,
    optimizer_order: Sequence[str] | str | None = None,
    progress: Callable[[int, int], None] | None = None,
    ahead_bytes: int = AHEAD_BYTES,
    hosts: Hosts = ALONE,
    planner: Callable[[CheckpointLike, PlanOptions], PlannedConversion] = planned,
    extra: Mapping[str, np.ndarray[Any, Any]] | None = None,
    **options: Unpack[PlanKeywords],
) -> Conversion:
    """Convert a torch checkpoint into a pytree for Flax, on disk; dtypes and bits are kept.

        convert("model.pt", model="net.py:Net", output="net.flax.safetensors")

    Args:
        checkpoint: a `.safetensors` file, a file of `torch.save`, a `*.index.json`, an `.npz`, a
            Hugging Face folder or one of torch.distributed.checkpoint; or one of these on a hub, a server or
            in a bucket: "org/name@revision", "gs://…" (`converters.remote.names`).
        output: the file to write, or a URL of a bucket; None for `NAME.flax.safetensors` (or
            `.msgpack`) in the current directory, where NAME is the checkpoint's file or folder.
        format: "safetensors", "msgpack" or "orbax" (a folder); None for the format in the output's
            name, else safetensors.
        overwrite: whether an existing output may be replaced.
        resume: continue an interrupted run of the same conversion.
        shard_bytes: for safetensors: the output is a folder of files of at most this number of bytes.
        mesh: for orbax: the axes of the device mesh that will restore it, "data=4,model=2", and
        spec: the rules that shard arrays on the mesh (`converters.output.sharding`); the output is
            cut accordingly.
        fail_on_nonfinite: write nothing if a number is NaN or infinite.
        digests: compute the SHA-256 of every array (reads the output once more).
        optimizer: the file with the state of the torch optimizer, which may be the checkpoint itself: it
            is written as an optax state into `NAME.opt.safetensors` beside the output
            (`converters.optimizer`).
        optimizer_key: its entry there; None for the only one.
        optimizer_kind: "adam" or "adamw", if the state does not show it (torch before 2.7).
        optimizer_order: the order of its parameters, if several fit (`convert_optimizer`).
        progress: called with the bytes done and their total.
        ahead_bytes: bytes of a remote checkpoint to read ahead.
        hosts: the processes that share this conversion (`converters.hosts.met`), which all call this with
            the same arguments: each reads and writes a part of an output in a bucket that is many objects.
        planner: the function that makes the plan; `converters.planning_apart.planned_apart` makes
            it in a separate process, but not for an optimizer, whose state needs the model.
        extra: further arrays of the pytree, by path: constants of the Flax model that are not in
            the checkpoint.
        **options: the fields of `converters.request.PlanOptions`.

    Raises:
        CheckpointInMemoryError: the checkpoint is a state dict or a module: use `convert_to_pytree`.
        RefusedKeysError: some keys have no location; all of them are in `refused`. Nothing is written.
        ConversionError: the checkpoint or model cannot be read, or the output not be written; the
            subclass says which. Nothing that looks complete is left.
        HostsError: another process died or failed, or was given other arguments.
    """
    _require_stored(checkpoint)
    state = None
    if optimizer is not None:
        state = OptimizerRequest(optimizer, optimizer_key, optimizer_kind, optimizer_order)
    request = ConversionRequest(
        checkpoint,
        output,
        format,
        overwrite=overwrite,
        resume=resume,
        shard_bytes=shard_bytes,
        mesh=mesh,
        spec=spec,
        fail_on_nonfinite=fail_on_nonfinite,
        digests=digests,
        optimizer=state,
        ahead_bytes=ahead_bytes,
        plan=PlanOptions(**options),
    )
    return run_conversion(request, progress=progress, hosts=hosts, planner=planner, extra=extra)


def _require_stored(checkpoint: object) -> None:
    """Raise CheckpointInMemoryError for an object that is not the name of a checkpoint."""
    if isinstance(checkpoint, Mapping):
        kind, call = "a state dict", "convert_to_pytree(state_dict)"
    elif callable(getattr(checkpoint, "state_dict", None)):
        kind, call = "a module", "convert_to_pytree(model.state_dict(), model=model)"
    else:
        return
    raise CheckpointInMemoryError(
        f"convert() reads a checkpoint file, folder or URL, and got {kind} in memory",
        f"call converters.{call}, which returns the Flax pytree",
    )


def run_conversion(
    request: ConversionRequest,
    *,
    progress: Callable[[int, int], None] | None = None,
    hosts: Hosts = ALONE,
    planner: Callable[[CheckpointLike, PlanOptions], PlannedConversion] = planned,
    extra: Mapping[str, np.ndarray[Any, Any]] | None = None,
) -> Conversion:
    """Run a conversion; `convert` documents the arguments and the errors."""
    understood = resolve_name(request.checkpoint)
    source = understood.source
    asked = _RequestedOutput.of(source, request.output, request.format, request.shard_bytes)
    target = asked.location
    replaced = request.overwrite or request.resume
    if hosts.count > 1:
        _require_for_many(target, asked.folder)
        size = request.shard_bytes
        hosts.agree(
            {
                "checkpoint": str(source),
                "output": str(target),
                "format": asked.format if size is None else f"{asked.format}, {size} bytes a file",
                "mesh": str(request.mesh),
                "way to treat an older output": f"resume {request.resume}, overwrite {request.overwrite}",
                "way to look at the values": f"fail on NaN {request.fail_on_nonfinite}, "
                f"sums {request.digests}",
            }
        )
    asked.require_free(source, overwrite=request.overwrite, look=hosts.first)
    if request.optimizer is not None and any(map(is_remote, (source, target))):
        raise OptimizerError(
            "optimizer state can be converted between local files only",
            "download the checkpoint, or leave --optimizer out",
        )
    conversion = _require_complete(planner(source, request.plan), compare=hosts.first)
    cuts = None if request.mesh is None else _partition(conversion, request.mesh, request.spec).cuts
    state = None
    if request.optimizer is not None:
        state = convert_optimizer(
            request.optimizer.file,
            plan=conversion.plan,
            output=optimizer_output(Path(str(target))),
            model=conversion.model,
            key=request.optimizer.key,
            order=request.optimizer.order,
            keys_in_order=conversion.checkpoint.keys_in_order,
            optimizer=request.optimizer.kind,
            overwrite=replaced,
        )
    beside = (
        writing_kept(
            target,
            conversion.plan,
            conversion.checkpoint,
            api=conversion.api,
            stored=conversion.stored,
            overwrite=replaced,
        )
        if hosts.first
        else nullcontext(kept_path(target))
    )
    with beside as kept:
        written = write_pytree(
            target,
            [
                *leaves_of(
                    conversion.leaves,
                    conversion.checkpoint,
                    cast=conversion.dtype is not None,
                ),
                *_leaves(extra),
            ],
            asked.format,
            overwrite=request.overwrite,
            resume=request.resume,
            recipe=recipe_of(conversion.leaves, source),
            metadata={"api": conversion.api},
            shard_bytes=request.shard_bytes,
            cuts=cuts,
            fail_on_not_finite=request.fail_on_nonfinite,
            digests=request.digests,
            progress=progress,
            before_commit=source.require_unchanged
            if isinstance(source, RemoteSource)
            else _nothing,
            ahead_bytes=request.ahead_bytes,
            hosts=hosts,
        )
    source_notes = tuple(filter(None, (understood.description, region_warning(target))))
    shared = (f"written together; this was {hosts.process}",) if hosts.count > 1 else ()
    notes = (*source_notes, *conversion.notes, *shared)
    options_of_run = conversion.checkpoint.options
    return Conversion(
        conversion.plan,
        target,
        kept,
        conversion.api,
        asked.format,
        written,
        notes,
        options_of_run,
        state,
    )


def require_free(
    checkpoint: Source | ResolvedName | str,
    output: Source | str | None,
    format: Format | None = None,  # noqa: A002 (as in convert)
    *,
    overwrite: bool = False,
    shard_bytes: int | None = None,
) -> None:
    """Check whether `convert` may write its output, for callers with much work before the call.

    Raises:
        OutputError: the output may not be written.
        RemoteError: the bucket refuses.
    """
    source = resolve_name(checkpoint).source
    _RequestedOutput.of(source, output, format, shard_bytes).require_free(
        source, overwrite=overwrite
    )


@dataclass(frozen=True)
class _RequestedOutput:
    """Requested output: its location, its format, and whether it is a folder."""

    location: Source
    format: Format
    folder: bool

    @classmethod
    def of(
        cls,
        source: Source,
        output: Source | str | None,
        form: Format | None,
        shard_bytes: int | None,
    ) -> _RequestedOutput:
        if form is None:
            suffix = "" if output is None else Path(str(output)).suffix
            form = _FORMATS.get(suffix, "safetensors")
        location = default_output(source, form) if output is None else destination(output)
        return cls(location, form, form == "orbax" or shard_bytes is not None)

    def require_free(self, source: Source, *, overwrite: bool, look: bool = True) -> None:
        """Raise if the output cannot be written; `look` also checks for an existing output."""
        if look:
            require_output(self.location, folder=self.folder, overwrite=overwrite)
        if _same(self.location, source):
            raise OutputError(f"{self.location} is the checkpoint itself", "choose another output")


def _nothing() -> None:
    pass


def _require_for_many(target: Source, as_folder: bool) -> None:
    if not is_remote(target):
        raise HostsError(
            f"{target} is a path, and several processes write to a bucket together",
            "give -o gs://…, or --process 0/1 to convert on this host alone",
        )
    if not as_folder:
        raise HostsError(
            f"{target} would be one object, which several processes cannot write together",
            "give --format orbax or --max-shard-size, or --process 0/1 to convert on this host alone",
        )


def _same(first: Source, other: Source) -> bool:
    if isinstance(first, Path) and isinstance(other, Path):
        return os.path.exists(first) and os.path.exists(other) and first.samefile(other)
    return str(first) == str(other)


def _leaves(extra: Mapping[str, np.ndarray[Any, Any]] | None) -> list[PytreeLeaf]:
    return [
        PytreeLeaf(path, TensorInfo(array.shape, array.dtype.name), partial(np.asarray, array))
        for path, array in (extra or {}).items()
    ]


def convert_to_pytree(checkpoint: CheckpointLike, **options: Unpack[PlanKeywords]) -> Pytree:
    """Convert to a pytree in memory, `{"params": {…}, …}` with numpy leaves; write nothing.

    The arrays may be views of the checkpoint (read-only views of a mapped file). For nnx the
    positions of lists are text ("0"): `nnx.restore_int_paths` makes them numbers.

    Raises:
        RefusedKeysError: some keys have no location; all of them are in `refused`.
        ConversionError: the checkpoint or model cannot be read; the subclass says why.
    """
    with _unchanged(checkpoint) as source:
        conversion = _require_complete(planned(source, PlanOptions(**options)))
        leaves = leaves_of(
            conversion.leaves,
            conversion.checkpoint,
            cast=conversion.dtype is not None,
        )
        return nest((leaf.path, leaf.read()) for leaf in leaves)


def convert_to_mesh(
    checkpoint: CheckpointLike,
    *,
    mesh: str,
    spec: Path | str,
    progress: Callable[[int, int], None] | None = None,
    **options: Unpack[PlanKeywords],
) -> Pytree:
    """Convert to `jax.Array`s sharded on a device mesh; write nothing.

    Each device's part is read and rearranged separately, so no array has to fit into this host's
    memory.

    Args:
        checkpoint: as for `convert`.
        mesh: the axes of the mesh over the first devices, "data=4,model=2".
        spec: a YAML file of rules (`converters.output.sharding`).
        progress: called with the bytes done and their total.
        **options: the fields of `converters.request.PlanOptions`.

    Raises:
        ShardingError: the mesh, the rules and the arrays do not fit together; the message lists all
            problems.
        ConversionError: as for `convert`.
    """
    with _unchanged(checkpoint) as source:
        conversion = _require_complete(planned(source, PlanOptions(**options)))
        where = _partition(conversion, mesh, spec)
        leaves = leaves_of(
            conversion.leaves,
            conversion.checkpoint,
            cast=conversion.dtype is not None,
        )
        return place_on_mesh(leaves, where, progress=progress)


@contextmanager
def _unchanged(checkpoint: CheckpointLike) -> Iterator[CheckpointLike]:
    """Yield the checkpoint; if it is remote, check at the end that no file was replaced.

    Raises:
        RemoteError: a file was replaced.
    """
    if isinstance(checkpoint, Mapping):
        yield checkpoint
        return
    understood = resolve_name(checkpoint)
    yield understood
    if isinstance(understood.source, RemoteSource):
        understood.source.require_unchanged()


def _partition(conversion: PlannedConversion, mesh: str, spec: Path | str | None) -> Partition:
    if spec is None:
        raise ShardingError([f"the mesh {mesh} needs rules"], "add --spec rules.yaml")
    axes = parse_mesh(mesh)
    infos = {leaf.path: leaf.info for leaf in conversion.leaves}
    return partition(infos, axes, load_rules(Path(spec), axes))


def optimizer_output(output: Path) -> Path:
    """Return `NAME.opt.safetensors` beside the output: the state of the optimizer."""
    name = output.name
    for suffix in _FORMATS:
        name = name.removesuffix(suffix)
    return output.with_name(f"{name}.opt.safetensors")


def default_output(checkpoint: Source, format: Format) -> Path:  # noqa: A002 (as in convert)
    """Return `NAME.flax.safetensors` (or `.msgpack`, `.orbax`) in the current directory."""
    # "." has no name
    resolved = checkpoint.resolve() if isinstance(checkpoint, Path) else checkpoint
    # model.safetensors.index.json becomes model, net.v2.pt becomes net.v2.
    stem = Path(resolved.name.removesuffix(INDEX_SUFFIX)).stem
    full_name = resolved.name if isinstance(resolved, Path) else resolved.name.partition("@")[0]
    name = full_name if resolved.is_dir() else stem
    return Path(f"{name or 'checkpoint'}.flax.{format}")


def _require_complete(conversion: PlannedConversion, *, compare: bool = True) -> PlannedConversion:
    """Return the plan, if nothing in it is refused and tied tensors are equal.

    Args:
        conversion: the plan.
        compare: whether to compare the tied tensors; otherwise another process does.

    Raises:
        RefusedKeysError: a key is refused.
    """
    plan = conversion.plan
    source_of = {row.targets: row.key for row in plan.mapped}
    rows = tuple(
        row.refuse(f"tied to {source_of[row.targets]}, but its values differ")
        if compare
        and row.outcome is Outcome.TIED
        and not _equal(conversion.checkpoint, row.key, source_of[row.targets])
        else row
        for row in plan.rows
    )
    plan = replace(plan, rows=rows)
    if plan.refused:
        raise RefusedKeysError(
            plan.checkpoint,
            len(plan.rows),
            plan.refused,
            "pass the model that the checkpoint was saved from, with the same configuration "
            "(--model), or set the kind of an ambiguous layer (--assume)",
        )
    return replace(conversion, plan=plan)


def _equal(checkpoint: Checkpoint, key: str, other: str) -> bool:
    """Compare two tensors bitwise: NaN equals itself, and 0.0 is not -0.0."""
    if any(key in group and other in group for group in checkpoint.shared):
        return True
    first, two = (np.ascontiguousarray(checkpoint.read(name)) for name in (key, other))
    if first.dtype != two.dtype or first.shape != two.shape:
        return False
    first, two = (array.reshape(-1).view(np.uint8) for array in (first, two))
    equal = all(
        np.array_equal(first[start : start + _COMPARED], two[start : start + _COMPARED])
        for start in range(0, first.size, _COMPARED)
    )
    checkpoint.release(key)
    checkpoint.release(other)
    return equal

"""A torch checkpoint into a Flax pytree: plan, then write; every key accounted for."""

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
from converters.checkpoint.source import RemoteSource, Source
from converters.checkpoint.pytree import PytreeLeaf
from converters.checkpoint.reader import TensorInfo
from converters.errors import (
    HostsError,
    OptimizerError,
    OutputError,
    RefusedKeysError,
    ShardingError,
)
from converters.hosts import ALONE, Hosts
from converters.kept import keeping, kept_path
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
from converters.planning import CheckpointLike, Planned, planned
from converters.remote.names import ResolvedName, is_remote, resolve_name
from converters.remote.region import region_warning
from converters.remote.writing import destination
from converters.request import ConversionRequest, OptimizerRequest, PlanKeywords, PlanOptions

_FORMATS: dict[str, Format] = {
    ".safetensors": "safetensors",
    ".msgpack": "msgpack",
    ".orbax": "orbax",
}
# Compared at once, where two tensors are to be equal.
_COMPARED = 64 << 20


@dataclass(frozen=True)
class Conversion:
    """A conversion that was written.

    Attributes:
        plan: every key and what became of it.
        output: the file written.
        kept: the file beside it, for the way back to torch (`converters.reverse`).
        api: whose names the paths are made of.
        format: "safetensors", "msgpack" or "orbax".
        written: what is in it.
        notes: what else the user should know, one line each.
        options: what the training run was told, as far as the checkpoint has it: name of the entry → its
            contents, plain values.
        optimizer: the optimizer whose state was written too; None: none was asked for.
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
    """What a conversion would do; writes nothing and reads headers only.

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
    planner: Callable[[CheckpointLike, PlanOptions], Planned] = planned,
    extra: Mapping[str, np.ndarray[Any, Any]] | None = None,
    **options: Unpack[PlanKeywords],
) -> Conversion:
    """Convert a torch checkpoint into a pytree for Flax, on disk; dtypes and bits are kept.

        convert("model.pt", model="net.py:Net", output="net.flax.safetensors")

    Args:
        checkpoint: a `.safetensors` file, a file of `torch.save`, a `*.index.json`, an `.npz`, a
            Hugging Face folder or one of torch.distributed.checkpoint; or one of these on a hub, a server or
            in a bucket: "org/name@revision", "gs://…" (`converters.remote.names`).
        output: the file to write, or a URL of a bucket; None: `NAME.flax.safetensors` (or `.msgpack`) in
            the current directory, NAME being the checkpoint's file or folder.
        format: "safetensors", "msgpack" or "orbax" (a folder); None: as the name of the output says, else
            safetensors.
        overwrite: whether an existing output may be replaced.
        resume: go on with what an interrupted run of the same conversion left.
        shard_bytes: for safetensors: the output is a folder of files of at most so many bytes.
        mesh: for orbax: the axes of the device mesh that will restore it, "data=4,model=2", and
        spec: the rules by which arrays lie on it (`converters.output.sharding`): they are cut so.
        fail_on_nonfinite: write nothing if a number is NaN or infinite.
        digests: compute the SHA-256 of every array (reads the output once more).
        optimizer: the file with the state of the torch optimizer, which may be the checkpoint itself: it
            is written as an optax state into `NAME.opt.safetensors` beside the output
            (`converters.optimizer`).
        optimizer_key: its entry there; None: the only one.
        optimizer_kind: "adam" or "adamw", where the state does not tell (torch before 2.7).
        optimizer_order: the order of its parameters, where several fit (`convert_optimizer`).
        progress: called with the bytes done and their total.
        ahead_bytes: of a checkpoint that lies far away, as much is read before it is due.
        hosts: the processes that share this conversion (`converters.hosts.met`), which all call this with
            the same arguments: each reads and writes a part of an output in a bucket that is many objects.
        planner: what makes the plan; `converters.planning_apart.planned_apart` makes it in a process of
            its own, but not for an optimizer, whose state needs the model.
        extra: arrays that the pytree is to have beside what the checkpoint gives, by path: constants of the
            Flax model that it computes from nothing.
        **options: the fields of `converters.request.PlanOptions`.

    Raises:
        RefusedKeysError: some keys have no place; all of them are in `refused`. Nothing is written.
        ConversionError: the checkpoint or model cannot be read, or the output not be written; the
            subclass says which. Nothing that looks complete is left.
        HostsError: another process died or failed, or was given other arguments.
    """
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


def run_conversion(
    request: ConversionRequest,
    *,
    progress: Callable[[int, int], None] | None = None,
    hosts: Hosts = ALONE,
    planner: Callable[[CheckpointLike, PlanOptions], Planned] = planned,
    extra: Mapping[str, np.ndarray[Any, Any]] | None = None,
) -> Conversion:
    """Convert as `convert` does, which has the meaning of the arguments and the errors."""
    understood = resolve_name(request.checkpoint)
    source = understood.source
    asked = _Asked.of(source, request.output, request.format, request.shard_bytes)
    target = asked.place
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
            "the state of an optimizer is converted from and to local files only",
            "download the checkpoint, or leave --optimizer out",
        )
    made = _require_complete(planner(source, request.plan), compare=hosts.first)
    cuts = None if request.mesh is None else _partition(made, request.mesh, request.spec).cuts
    state = None
    if request.optimizer is not None:
        state = convert_optimizer(
            request.optimizer.file,
            plan=made.plan,
            output=optimizer_output(Path(str(target))),
            model=made.model,
            key=request.optimizer.key,
            order=request.optimizer.order,
            keys_in_order=made.checkpoint.keys_in_order,
            optimizer=request.optimizer.kind,
            overwrite=replaced,
        )
    beside = (
        keeping(
            target,
            made.plan,
            made.checkpoint,
            api=made.api,
            stored=made.stored,
            overwrite=replaced,
        )
        if hosts.first
        else nullcontext(kept_path(target))
    )
    with beside as kept:
        written = write_pytree(
            target,
            [
                *leaves_of(made.leaves, made.checkpoint, cast=made.dtype is not None),
                *_leaves(extra),
            ],
            asked.format,
            overwrite=request.overwrite,
            resume=request.resume,
            recipe=recipe_of(made.leaves, source),
            metadata={"api": made.api},
            shard_bytes=request.shard_bytes,
            cuts=cuts,
            fail_on_not_finite=request.fail_on_nonfinite,
            digests=request.digests,
            progress=progress,
            before_commit=source.require_unchanged if isinstance(source, RemoteSource) else _nothing,
            ahead_bytes=request.ahead_bytes,
            hosts=hosts,
        )
    said = tuple(filter(None, (understood.description, region_warning(target))))
    shared = (f"written together; this was {hosts.process}",) if hosts.count > 1 else ()
    notes = (*said, *made.notes, *shared)
    options_of_run = made.checkpoint.options
    return Conversion(
        made.plan, target, kept, made.api, asked.format, written, notes, options_of_run, state
    )


def require_free(
    checkpoint: Source | ResolvedName | str,
    output: Source | str | None,
    format: Format | None = None,  # noqa: A002 (as in convert)
    *,
    overwrite: bool = False,
    shard_bytes: int | None = None,
) -> None:
    """Find out whether `convert` may write its output, for who has much to do before it is called.

    Raises:
        OutputError: it may not.
        RemoteError: the bucket refuses.
    """
    source = resolve_name(checkpoint).source
    _Asked.of(source, output, format, shard_bytes).require_free(source, overwrite=overwrite)


@dataclass(frozen=True)
class _Asked:
    """The output that a caller asks for: its place, its format, and whether it is a folder."""

    place: Source
    format: Format
    folder: bool

    @classmethod
    def of(
        cls,
        source: Source,
        output: Source | str | None,
        form: Format | None,
        shard_bytes: int | None,
    ) -> _Asked:
        if form is None:
            suffix = "" if output is None else Path(str(output)).suffix
            form = _FORMATS.get(suffix, "safetensors")
        place = default_output(source, form) if output is None else destination(output)
        return cls(place, form, form == "orbax" or shard_bytes is not None)

    def require_free(self, source: Source, *, overwrite: bool, look: bool = True) -> None:
        """Raise what stands against writing it; `look`: also what is there already."""
        if look:
            require_output(self.place, folder=self.folder, overwrite=overwrite)
        if _same(self.place, source):
            raise OutputError(f"{self.place} is the checkpoint itself", "choose another output")


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


def _same(one: Source, other: Source) -> bool:
    if isinstance(one, Path) and isinstance(other, Path):
        return os.path.exists(one) and os.path.exists(other) and one.samefile(other)
    return str(one) == str(other)


def _leaves(extra: Mapping[str, np.ndarray[Any, Any]] | None) -> list[PytreeLeaf]:
    return [
        PytreeLeaf(path, TensorInfo(array.shape, array.dtype.name), partial(np.asarray, array))
        for path, array in (extra or {}).items()
    ]


def convert_to_pytree(checkpoint: CheckpointLike, **options: Unpack[PlanKeywords]) -> Pytree:
    """The pytree itself, `{"params": {…}, …}` with numpy leaves, and nothing written.

    The arrays may be views of the checkpoint (read-only ones of a mapped file). For nnx the
    positions of lists are texts ("0"): `nnx.restore_int_paths` makes them numbers.

    Raises:
        RefusedKeysError: some keys have no place; all of them are in `refused`.
        ConversionError: the checkpoint or model cannot be read; the subclass says why.
    """
    with _unchanged(checkpoint) as source:
        made = _require_complete(planned(source, PlanOptions(**options)))
        leaves = leaves_of(made.leaves, made.checkpoint, cast=made.dtype is not None)
        return nest((leaf.path, leaf.read()) for leaf in leaves)


def convert_to_mesh(
    checkpoint: CheckpointLike,
    *,
    mesh: str,
    spec: Path | str,
    progress: Callable[[int, int], None] | None = None,
    **options: Unpack[PlanKeywords],
) -> Pytree:
    """The pytree as `jax.Array`s that lie sharded on a device mesh, and nothing written.

    Each device's part is read and rearranged by itself, so that no array need fit into this host's memory.

    Args:
        checkpoint: as for `convert`.
        mesh: its axes, "data=4,model=2", laid over the first devices.
        spec: a YAML file of rules (`converters.output.sharding`).
        progress: called with the bytes done and their total.
        **options: the fields of `converters.request.PlanOptions`.

    Raises:
        ShardingError: the mesh, the rules or an array do not fit together; all that is wrong is named.
        ConversionError: as for `convert`.
    """
    with _unchanged(checkpoint) as source:
        made = _require_complete(planned(source, PlanOptions(**options)))
        where = _partition(made, mesh, spec)
        leaves = leaves_of(made.leaves, made.checkpoint, cast=made.dtype is not None)
        return place_on_mesh(leaves, where, progress=progress)


@contextmanager
def _unchanged(checkpoint: CheckpointLike) -> Iterator[CheckpointLike]:
    """The checkpoint, of which nothing may be replaced until the end, where it is far away.

    Raises:
        RemoteError: something was.
    """
    if isinstance(checkpoint, Mapping):
        yield checkpoint
        return
    understood = resolve_name(checkpoint)
    yield understood
    if isinstance(understood.source, RemoteSource):
        understood.source.require_unchanged()


def _partition(made: Planned, mesh: str, spec: Path | str | None) -> Partition:
    if spec is None:
        raise ShardingError(
            [f"the mesh {mesh} comes without rules"], "give them (--spec rules.yaml)"
        )
    axes = parse_mesh(mesh)
    infos = {leaf.path: leaf.info for leaf in made.leaves}
    return partition(infos, axes, load_rules(Path(spec), axes))


def optimizer_output(output: Path) -> Path:
    """`NAME.opt.safetensors` beside the output: the state of the optimizer."""
    name = output.name
    for suffix in _FORMATS:
        name = name.removesuffix(suffix)
    return output.with_name(f"{name}.opt.safetensors")


def default_output(checkpoint: Source, format: Format) -> Path:  # noqa: A002 (as in convert)
    """`NAME.flax.safetensors` (or `.msgpack`, `.orbax`) in the current directory."""
    # "." has no name of its own
    resolved = checkpoint.resolve() if isinstance(checkpoint, Path) else checkpoint
    # model.safetensors.index.json is called model, net.v2.pt is called net.v2.
    stem = Path(resolved.name.removesuffix(INDEX_SUFFIX)).stem
    whole = resolved.name if isinstance(resolved, Path) else resolved.name.partition("@")[0]
    name = whole if resolved.is_dir() else stem
    return Path(f"{name or 'checkpoint'}.flax.{format}")


def _require_complete(made: Planned, *, compare: bool = True) -> Planned:
    """The plan, if nothing in it is refused and tied tensors are indeed equal.

    Args:
        made: the plan.
        compare: whether to read the tied tensors; else another process does.

    Raises:
        RefusedKeysError: something is.
    """
    plan = made.plan
    source_of = {row.targets: row.key for row in plan.mapped}
    rows = tuple(
        row.refuse(f"tied to {source_of[row.targets]}, but its values differ")
        if compare
        and row.outcome is Outcome.TIED
        and not _equal(made.checkpoint, row.key, source_of[row.targets])
        else row
        for row in plan.rows
    )
    plan = replace(plan, rows=rows)
    if plan.refused:
        raise RefusedKeysError(
            plan.checkpoint,
            len(plan.rows),
            plan.refused,
            "pass the model that the checkpoint was saved from, configured alike (--model), or say what an "
            "ambiguous layer is (--assume)",
        )
    return replace(made, plan=plan)


def _equal(checkpoint: Checkpoint, key: str, other: str) -> bool:
    """Bit for bit: NaN equals itself, and 0.0 is not -0.0."""
    if any(key in group and other in group for group in checkpoint.shared):
        return True
    one, two = (np.ascontiguousarray(checkpoint.read(name)) for name in (key, other))
    if one.dtype != two.dtype or one.shape != two.shape:
        return False
    one, two = (array.reshape(-1).view(np.uint8) for array in (one, two))
    equal = all(
        np.array_equal(one[start : start + _COMPARED], two[start : start + _COMPARED])
        for start in range(0, one.size, _COMPARED)
    )
    checkpoint.release(key)
    checkpoint.release(other)
    return equal

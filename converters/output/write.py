"""Writing of a pytree to a file or folder: atomic, in bounded memory, and resumable."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from converters.atomic import require_writable, sync_folder
from converters.checkpoint.pytree import Format, PytreeLeaf
from converters.checkpoint.source import RemoteSource, Source
from converters.errors import HostsError, NotFiniteError, OutputError, RemoteError
from converters.hosts import ALONE, Hosts
from converters.output.digests import digest_leaves
from converters.output.far_partial import FarPartial, require_far_output
from converters.output.fingerprint import fingerprint_of
from converters.output.layouts import OutputLayout
from converters.output.msgpack_layout import msgpack_layout
from converters.output.orbax_layout import METADATA_NAME, orbax_layout
from converters.output.partial import Partial, Slab, require_space
from converters.output.safetensors_layout import INDEX_NAME, safetensors_layout, sharded_layout
from converters.output.stream import AHEAD_BYTES, Progress, Sink, stream
from converters.remote.store import StoreSource


@dataclass(frozen=True)
class WrittenLeaf:
    """Array of an output.

    Attributes:
        path: the `/`-joined path.
        shape: its shape.
        dtype: its element type.
        nbytes: its size in bytes.
        not_finite: the number of its NaN or infinite values.
        sha256: the SHA-256 of its bytes in row-major order; "" if not requested, or in several chunks.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    not_finite: int
    sha256: str = ""


@dataclass(frozen=True)
class WrittenOutput:
    """Output that is complete and on disk.

    Attributes:
        output: the file or folder.
        leaves: its arrays, in order.
        nbytes: the number of bytes of all arrays.
        resumed: the number of bytes kept from an interrupted run.
        left_over: whether a file of an interrupted run was discarded.
    """

    output: Source
    leaves: tuple[WrittenLeaf, ...]
    nbytes: int
    resumed: int = 0
    left_over: bool = False

    @property
    def not_finite(self) -> tuple[WrittenLeaf, ...]:
        """Leaves with NaN or infinite values."""
        return tuple(leaf for leaf in self.leaves if leaf.not_finite)


def write_pytree(
    output: Source,
    leaves: Sequence[PytreeLeaf],
    form: Format,
    *,
    overwrite: bool = False,
    resume: bool = False,
    recipe: str = "",
    metadata: Mapping[str, str] | None = None,
    shard_bytes: int | None = None,
    cuts: Mapping[str, tuple[int, ...]] | None = None,
    fail_on_not_finite: bool = False,
    digests: bool = False,
    progress: Progress | None = None,
    before_commit: Callable[[], None] = lambda: None,
    ahead_bytes: int = AHEAD_BYTES,
    hosts: Hosts = ALONE,
) -> WrittenOutput:
    """Write a pytree to an output that takes its name only when it is complete and on disk.

    A kill or a keyboard interrupt leaves a hidden partial file and its journal (`.NAME.partial`,
    `.NAME.partial.journal`), which no reader takes for a pytree. Any error removes them.

    Args:
        output: the file or folder.
        leaves: its arrays; `units_of` determines how each is read.
        form: "safetensors", "msgpack" (flax's) or "orbax" (a folder).
        overwrite: whether an existing output may be replaced.
        resume: continue an interrupted run of the same conversion, if any; otherwise its data is
            discarded.
        recipe: everything that determines the values, e.g. the plan and the checkpoint's files
            (`recipe_of`). A partial file of another recipe is not resumed.
        metadata: metadata of a safetensors header in addition to `format: flax`. With `api: nnx`,
            digits in paths are positions of lists, which `load_pytree` returns as numbers.
        shard_bytes: for safetensors: the output is a folder with an index, and files of at most
            this number of bytes of values (an array is always in one file).
        cuts: for orbax: leaf → number of parts along each of its axes, so that a device with such a
            part reads nothing else.
        fail_on_not_finite: refuse to complete an output with a NaN or an infinity.
        digests: compute SHA-256 of every leaf, from the bytes in the file (reads it once more).
        progress: called with the bytes done and their total.
        before_commit: called after all data is written, before the output is complete; it may raise.
        ahead_bytes: bytes of a remote checkpoint to read ahead.
        hosts: the processes that write it together, each a share of the objects; only for a bucket.

    Raises:
        OutputError: the output exists and may not be overwritten, the disk refuses, the output to
            resume belongs to another conversion (with `overwrite` it starts over), or the format
            does not support shards or cuts.
        NotFiniteError: a value is not finite, and `fail_on_not_finite` is on.
        HostsError: another process died or failed, or runs another conversion.
        UnsupportedDtypeError: the format cannot hold an array's element type.
        ValueError: the format is unknown.
    """
    if form not in get_args(Format):
        raise ValueError(f"{form!r} is not one of {get_args(Format)}")
    if shard_bytes is not None and (form != "safetensors" or shard_bytes <= 0):
        raise OutputError(
            f"{output}: --max-shard-size needs safetensors output and a size above 0",
            "leave --max-shard-size out",
        )
    if cuts is not None and form != "orbax":
        raise OutputError(f"{output}: only orbax output can be sharded", "choose --format orbax")
    described = {"format": "flax", **(metadata or {})}
    if form == "msgpack":
        layout = msgpack_layout(leaves, positions=described.get("api") == "nnx")
    elif form == "orbax":
        layout = orbax_layout(leaves, cuts or {})
    elif shard_bytes is None:
        layout = safetensors_layout(leaves, described)
    else:
        layout = sharded_layout(leaves, described, shard_bytes)
    return write_layout(
        output,
        layout,
        overwrite=overwrite,
        resume=resume,
        recipe=recipe,
        fail_on_not_finite=fail_on_not_finite,
        digests=digests,
        progress=progress,
        before_commit=before_commit,
        ahead_bytes=ahead_bytes,
        hosts=hosts,
    )


def write_layout(
    output: Source,
    layout: OutputLayout,
    *,
    overwrite: bool = False,
    resume: bool = False,
    recipe: str = "",
    fail_on_not_finite: bool = False,
    digests: bool = False,
    progress: Progress | None = None,
    before_commit: Callable[[], None] = lambda: None,
    ahead_bytes: int = AHEAD_BYTES,
    hosts: Hosts = ALONE,
) -> WrittenOutput:
    """Write an output of any layout; see `write_pytree`."""
    if hosts.first:
        require_output(output, folder=layout.is_folder, overwrite=overwrite)
    if isinstance(output, RemoteSource):
        assert isinstance(output, StoreSource)
        fingerprint = fingerprint_of(layout, recipe)
        hosts.agree({"checkpoint, or other options": fingerprint[:12]})
        far = FarPartial(
            output,
            layout,
            fingerprint,
            resume=resume,
            anew=overwrite,
            hosts=hosts,
            flight_bytes=ahead_bytes,
        )
        return _write_far(
            far,
            lambda: _fill(far, layout, progress, digests=digests, ahead_bytes=ahead_bytes),
            fail_on_not_finite=fail_on_not_finite,
            before_commit=before_commit,
        )
    try:
        require_space(output, layout.sizes)
        fingerprint = fingerprint_of(layout, recipe)
        file = Partial(output, layout, fingerprint, resume=resume, anew=overwrite)
        try:
            written = _fill(file, layout, progress, digests=digests, ahead_bytes=ahead_bytes)
            if fail_on_not_finite and written.not_finite:
                raise NotFiniteError(str(output), [leaf.path for leaf in written.not_finite])
            before_commit()
            # The target may have been created meanwhile: check again just before renaming.
            require_output(output, folder=layout.is_folder, overwrite=overwrite)
            file.take_name()
        except Exception:
            file.remove()
            raise
        finally:
            file.close()
        sync_folder(output.parent)
    except OSError as error:
        raise OutputError(
            f"{output} cannot be written ({error.strerror or error})", "choose another output"
        ) from error
    return written


def _write_far(
    file: FarPartial,
    fill: Callable[[], WrittenOutput],
    *,
    fail_on_not_finite: bool,
    before_commit: Callable[[], None],
) -> WrittenOutput:
    """Fill an output in a bucket and complete it. If the bucket fails, the written objects can be
    resumed."""
    try:
        written = fill()
        if fail_on_not_finite and written.not_finite:
            raise NotFiniteError(str(file.output), [leaf.path for leaf in written.not_finite])
        before_commit()
        file.take_name()
    except (RemoteError, HostsError):
        file.keep()
        raise
    except Exception:
        file.close()
        file.remove()
        raise
    finally:
        file.close()
    return written


def require_output(output: Source, *, folder: bool, overwrite: bool) -> None:
    """Check before any work whether an output can take this name.

    A folder is replaced only if it is such an output itself: a mistyped name must not delete a
    user's folder.

    Args:
        output: the name.
        folder: whether the output is a folder: orbax, and sharded safetensors.
        overwrite: whether an older output may be replaced.

    Raises:
        OutputError: its folder is missing, or it exists and may not be overwritten.
    """
    if isinstance(output, RemoteSource):
        assert isinstance(output, StoreSource)
        require_far_output(output, folder=folder, overwrite=overwrite)
    elif not os.path.isdir(output):
        require_writable(output, overwrite=overwrite)
    elif not any((output / name).is_file() for name in (INDEX_NAME, METADATA_NAME)):
        raise OutputError(f"{output} is a folder with something else", "choose another output")
    elif not folder:
        raise OutputError(f"{output} is a folder", "name a file")
    elif not overwrite:
        raise OutputError(
            f"{output} exists already", "name another output, or overwrite it (--force)"
        )


def _fill(
    file: Sink,
    layout: OutputLayout,
    progress: Progress | None,
    *,
    digests: bool,
    ahead_bytes: int,
) -> WrittenOutput:
    done = file.verified(layout.placed)
    share = file.leaves_of_process(layout.placed)
    kept = {place.leaf.path: done[place.leaf.path] for place in share if place.leaf.path in done}
    slabs_of = stream(file, share, kept, progress, ahead_bytes=ahead_bytes)
    not_finite, digests_by_leaf = file.combined(
        {path: sum(slab.not_finite for slab in slabs) for path, slabs in slabs_of.items()},
        digest_leaves(file, share) if digests else {},
    )
    file.write_frames(layout.frames)
    file.sync()
    counted: Counter[str] = Counter()
    wholes: dict[str, PytreeLeaf] = {}
    for place in layout.placed:
        leaf = layout.wholes.get(place.leaf.path, place.leaf)
        wholes[leaf.path] = leaf
        counted[leaf.path] += not_finite[place.leaf.path]
    leaves = tuple(
        WrittenLeaf(
            path,
            leaf.info.shape,
            leaf.info.dtype,
            leaf.info.nbytes,
            counted[path],
            digests_by_leaf.get(path, ""),
        )
        for path, leaf in wholes.items()
    )
    return WrittenOutput(
        file.output,
        leaves,
        nbytes=sum(leaf.nbytes for leaf in leaves),
        resumed=sum(_length(slabs) for slabs in done.values()),
        left_over=file.left_over and not file.claimed,
    )


def _length(slabs: Sequence[Slab]) -> int:
    return sum(slab.stop - slab.start for slab in slabs)

"""A pytree into one file: whole or not there, in bounded memory, and resumable."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np

from converters.atomic import require_writable, sync_folder
from converters.checkpoint.pytree import Format, Leaf
from converters.errors import NotFiniteError, OutputError
from converters.output.digests import digest_leaves
from converters.output.fingerprint import fingerprint_of
from converters.output.layouts import FileLayout
from converters.output.msgpack_layout import msgpack_layout
from converters.output.partial_file import PartialFile, Slab
from converters.output.safetensors_layout import safetensors_layout
from converters.output.stream import Progress, stream, verified, write_all


@dataclass(frozen=True)
class WrittenLeaf:
    """An array of an output.

    Attributes:
        path: `/`-joined.
        shape: its sides.
        dtype: its element type.
        nbytes: its size.
        not_finite: how many of its numbers are NaN or infinite.
        sha256: of its bytes in row-major order; "" unless asked for.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    not_finite: int
    sha256: str = ""


@dataclass(frozen=True)
class Written:
    """An output that is complete and on disk.

    Attributes:
        output: the file or folder.
        leaves: what is in it, in its order.
        nbytes: of all arrays.
        resumed: bytes that an interrupted run had written and that were kept.
        left_over: whether an interrupted run's file was there and was discarded.
    """

    output: Path
    leaves: tuple[WrittenLeaf, ...]
    nbytes: int
    resumed: int = 0
    left_over: bool = False

    @property
    def not_finite(self) -> tuple[WrittenLeaf, ...]:
        """The leaves with numbers that are NaN or infinite."""
        return tuple(leaf for leaf in self.leaves if leaf.not_finite)


def write_pytree(
    output: Path,
    leaves: Sequence[Leaf],
    form: Format,
    *,
    overwrite: bool = False,
    resume: bool = False,
    recipe: str = "",
    metadata: Mapping[str, str] | None = None,
    fail_on_not_finite: bool = False,
    digests: bool = False,
    progress: Progress | None = None,
) -> Written:
    """Write a pytree into a file that takes its name only when it is complete and on disk.

    If the process is killed, or interrupted from the keyboard, a hidden partial file and its journal are left
    (`.NAME.partial`, `.NAME.partial.journal`), which is no pytree to any reader; any error removes them.

    Args:
        output: the file.
        leaves: its arrays; `units_of` says how each is read.
        form: "safetensors" or "msgpack" (flax's).
        overwrite: whether an existing output may be replaced.
        resume: go on with what an interrupted run of the same conversion left, if anything; else that is
            discarded.
        recipe: what determines the values, e.g. the plan and the checkpoint's files (`recipe_of`): a partial
            file of another recipe is not resumed.
        metadata: what a safetensors header says beside `format: flax`.
        fail_on_not_finite: refuse to complete an output with a NaN or an infinity.
        digests: compute SHA-256 of every leaf, from the bytes in the file (reads it once more).
        progress: called with the bytes done and their total.

    Raises:
        OutputError: the output exists and may not be overwritten, the disk refuses, or what is to be resumed
            is another conversion's (with `overwrite` it is begun anew).
        NotFiniteError: a number is not finite, and that is to fail.
        UnsupportedDtypeError: the format cannot hold an array's element type.
        ValueError: no such format.
    """
    if form not in get_args(Format):
        raise ValueError(f"{form!r} is not one of {get_args(Format)}")
    require_writable(output, overwrite=overwrite)
    if form == "safetensors":
        layout = safetensors_layout(leaves, {"format": "flax", **(metadata or {})})
    else:
        layout = msgpack_layout(leaves)
    try:
        fingerprint = fingerprint_of(layout, recipe)
        file = PartialFile(output, fingerprint, layout.size, resume=resume, anew=overwrite)
        try:
            written = _fill(file, layout, progress, digests=digests)
            if fail_on_not_finite and written.not_finite:
                raise NotFiniteError(str(output), [leaf.path for leaf in written.not_finite])
            # Someone may have made the target meanwhile: ask again just before taking its name.
            require_writable(output, overwrite=overwrite)
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


def _fill(
    file: PartialFile, layout: FileLayout, progress: Progress | None, *, digests: bool
) -> Written:
    done = verified(file.descriptor, layout.placed, file.claimed)
    for path, slabs in done.items():
        file.record(path, slabs)
    slabs_of = stream(file, layout.placed, done, progress)
    found = digest_leaves(file.descriptor, layout.placed) if digests else {}
    # The first bytes of all come last: without them it is no pytree.
    for offset, text in reversed(layout.frame):
        write_all(file.descriptor, np.frombuffer(text, np.uint8), offset)
    os.fsync(file.descriptor)
    leaves = tuple(
        WrittenLeaf(
            place.leaf.path,
            place.leaf.info.shape,
            place.leaf.info.dtype,
            place.leaf.info.nbytes,
            sum(slab.not_finite for slab in slabs_of[place.leaf.path]),
            found.get(place.leaf.path, ""),
        )
        for place in layout.placed
    )
    return Written(
        file.output,
        leaves,
        nbytes=sum(leaf.nbytes for leaf in leaves),
        resumed=sum(_length(slabs) for slabs in done.values()),
        left_over=file.left_over and not file.claimed,
    )


def _length(slabs: Sequence[Slab]) -> int:
    return sum(slab.stop - slab.start for slab in slabs)

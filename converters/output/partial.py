"""Unfinished output on disk, and its journal for `--resume`.

A file is written under the name `.NAME.partial`, with zeros in place of its first bytes until all
others are written, so that no reader takes it for a pytree. A folder output is written the same
way, with its index last. `.NAME.partial.journal` has one line with checksums per written leaf.
After a power cut it may list leaves that never reached the disk, so an entry counts only if the
checksums agree.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from converters.errors import OutputError
from converters.output.examine import check_sum
from converters.output.layouts import FrameBytes, OutputLayout, PlacedLeaf

_VERSION = 1
_PIECE = 1 << 20  # bytes per read
Bytes = np.ndarray[Any, Any]  # uint8


@dataclass(frozen=True)
class Slab:
    """Written range of a leaf's bytes.

    Attributes:
        start: its first byte within the leaf.
        stop: its end within the leaf.
        sum: its checksum (`converters.output.examine.check_sum`).
        not_finite: the number of its NaN or infinite values.
    """

    start: int
    stop: int
    sum: int
    not_finite: int


class Partial:
    """Output under its hidden name, locked against a second conversion to the same output.

    Args:
        output: the final name. layout: the layout of the output.
        fingerprint: the fingerprint of this conversion.
        resume: whether to keep the output of an earlier run.
        anew: whether to start over if the earlier run was another conversion.

    Attributes:
        output: the name that it is to take.
        path: the hidden name.
        claimed: leaf → its slabs from an earlier run of the same conversion, to be verified.
        left_over: whether output of an earlier run exists.

    Raises:
        OutputError: another process is writing it, or the output to resume belongs to another conversion.
    """

    def __init__(
        self, output: Path, layout: OutputLayout, fingerprint: str, *, resume: bool, anew: bool
    ) -> None:
        self.output = output
        self.path = partial_path(output)
        self._journal_path = self.path.with_name(f"{self.path.name}.journal")
        self._folder = layout.is_folder
        self._sizes = layout.sizes
        self.left_over = self.path.exists()
        self._lock = self._locked()
        try:
            head = json.dumps([_VERSION, fingerprint])
            self.claimed = self._claims(head, anew=anew) if resume else {}
            if not self.claimed:  # data of an earlier run must not remain
                self._empty()
            self._prepare()
            self._journal = self._begin_journal(head)
        except BaseException:
            os.close(self._lock)
            raise

    def write(self, file: str, offset: int, data: Bytes) -> None:
        """Write bytes at an offset of a file."""
        done = 0
        with self._opened(file, os.O_WRONLY) as descriptor:
            while done < data.size:
                done += os.pwrite(descriptor, data[done:].data, offset + done)

    def read(self, file: str, offset: int, into: Bytes) -> bool:
        """Read bytes from an offset. Return whether all of them existed."""
        done = 0
        with self._opened(file, os.O_RDONLY) as descriptor:
            while done < into.size:
                count = os.preadv(descriptor, [into[done:].data], offset + done)
                if count == 0:
                    return False
                done += count
        return True

    def leaves_of_process(self, placed: Sequence[PlacedLeaf]) -> Sequence[PlacedLeaf]:
        """Return all leaves, because one process writes them."""
        return placed

    def combined(
        self, not_finite: Mapping[str, int], digests: Mapping[str, str]
    ) -> tuple[Mapping[str, int], Mapping[str, str]]:
        """Return the results of this process."""
        return not_finite, digests

    def require_all(self) -> None:
        """Do nothing, because there is no other process."""

    def record(self, path: str, slabs: Sequence[Slab]) -> None:
        """Record that a leaf is written."""
        os.write(self._journal, _line(path, slabs))

    def verified(self, placed: Sequence[PlacedLeaf]) -> dict[str, tuple[Slab, ...]]:
        """Return the leaves of the journal whose bytes here have the recorded checksums."""
        return _verified(self, placed)

    def write_frames(self, frames: Sequence[FrameBytes]) -> None:
        """Write the bytes that are not values, the first bytes last: without them the file is not a
        pytree."""
        for frame in reversed(frames):
            self.write(frame.file, frame.offset, np.frombuffer(frame.data, np.uint8))

    def sync(self) -> None:
        """Flush everything to disk."""
        for file in self._sizes:
            with self._opened(file, os.O_RDONLY) as descriptor:
                os.fsync(descriptor)
        for folder in self._folders() if self._folder else ():
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            os.fsync(descriptor)
            os.close(descriptor)

    def take_name(self) -> None:
        """Rename to the output's name, replacing an older output."""
        self._journal_path.unlink()
        older = self.output.with_name(f".{self.output.name}.replaced")
        if os.path.isdir(self.output) or (self._folder and os.path.exists(self.output)):
            delete(older)  # a folder cannot replace another atomically
            self.output.rename(older)
        self.path.replace(self.output)
        delete(older)

    def close(self) -> None:
        """Close the files, which stay."""
        os.close(self._journal)
        os.close(self._lock)

    def remove(self) -> None:
        """Delete everything under the hidden names."""
        delete(self._journal_path)
        delete(self.path)

    @contextmanager
    def _opened(self, file: str, flags: int) -> Iterator[int]:
        if not self._folder:
            yield self._lock
            return
        descriptor = os.open(self.path / file, flags | os.O_CLOEXEC)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _locked(self) -> int:
        if self._folder != self.path.is_dir():
            self.remove()  # of the other kind, and therefore unusable
        if self._folder:
            self.path.mkdir(exist_ok=True)
            lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        else:
            lock = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The previous holder of the lock has renamed this very file to the output.
            moved = not os.path.samestat(os.fstat(lock), os.stat(self.path))
        except (BlockingIOError, FileNotFoundError):
            moved = True
        except OSError:
            moved = False  # some network file systems have no locks
        if moved:
            os.close(lock)
            raise OutputError(
                f"another conversion is writing {self.output}",
                "wait for it, or choose another output",
            )
        return lock

    def _empty(self) -> None:
        if not self._folder:
            os.ftruncate(self._lock, 0)
            return
        for path in self.path.iterdir():
            delete(path)

    def _prepare(self) -> None:
        """Create all files at their full sizes, without content where nothing is written yet."""
        if not self._folder:
            os.ftruncate(self._lock, self._sizes[""])
            return
        for folder in self._folders():
            folder.mkdir(exist_ok=True)
        for file, size in self._sizes.items():
            with self._opened(file, os.O_WRONLY | os.O_CREAT) as descriptor:
                os.ftruncate(descriptor, size)

    def _folders(self) -> list[Path]:
        """Return the folder and its subfolders, outer folders first."""
        folders = {self.path}
        for file in self._sizes:
            folders.update(self.path / parent for parent in Path(file).parents)
        return sorted(folders)

    def _begin_journal(self, head: str) -> int:
        """Start a journal with the head and the claims of an earlier run; the old journal stays until
        this is done."""
        lines = [_line(path, slabs) for path, slabs in self.claimed.items()]
        fresh = self._journal_path.with_name(f"{self._journal_path.name}.new")
        fresh.write_bytes(b"".join([f"{head}\n".encode(), *lines]))
        fresh.replace(self._journal_path)
        return os.open(self._journal_path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def _claims(self, head: str, *, anew: bool) -> Mapping[str, tuple[Slab, ...]]:
        try:
            first, *lines = self._journal_path.read_text("utf-8", "replace").splitlines()
        except (OSError, ValueError):
            return {}  # no journal: nothing was finished
        if first != head:
            if anew:
                return {}
            raise OutputError(
                f"{self.path} is of another conversion (other options, or the checkpoint changed)",
                "use the options that it started with, or start over (--force)",
            )
        claims = {}
        for line in lines:
            try:
                path, rows = json.loads(line)
                claims[str(path)] = tuple(Slab(*map(int, row)) for row in rows)
            except (ValueError, TypeError):
                break  # cut off by the interruption
        return claims


def _line(path: str, slabs: Sequence[Slab]) -> bytes:
    row = [path, [[slab.start, slab.stop, slab.sum, slab.not_finite] for slab in slabs]]
    return f"{json.dumps(row)}\n".encode()


def delete(path: Path) -> None:
    """Delete a file or a folder, if it exists and can be deleted."""
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def require_space(output: Path, sizes: Mapping[str, int]) -> None:
    """Check before any work whether the disk has space for an output.

    Raises:
        OutputError: the space is insufficient.
    """
    partial = partial_path(output)
    there = [partial, *(partial / file for file in sizes if file)]
    held = sum(path.stat().st_blocks * 512 for path in there if path.is_file())
    needed = sum(sizes.values()) - held  # output of an interrupted run is kept, or deleted first
    free = shutil.disk_usage(output.parent).free
    if needed > free:
        raise OutputError(
            f"{output} needs {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free",
            "free some space, or choose another output",
        )


def partial_path(output: Path) -> Path:
    """Return the path of an output while it is being written."""
    return output.with_name(f".{output.name}.partial")


def _verified(file: Partial, placed: Sequence[PlacedLeaf]) -> dict[str, tuple[Slab, ...]]:
    """Return the leaves of the journal whose bytes in the partial output have the recorded checksums."""
    held = np.empty(_PIECE, np.uint8)
    claimed = file.claimed
    return {
        place.leaf.path: claimed[place.leaf.path]
        for place in placed
        if place.leaf.path in claimed
        and _covers(claimed[place.leaf.path], place.leaf.info.nbytes)
        and all(_holds(file, place, slab, held) for slab in claimed[place.leaf.path])
    }


def _covers(slabs: Sequence[Slab], nbytes: int) -> bool:
    end = 0
    for slab in slabs:
        if slab.start != end or slab.stop <= slab.start:
            return False
        end = slab.stop
    return end == nbytes


def _holds(file: Partial, placed: PlacedLeaf, slab: Slab, held: Bytes) -> bool:
    total = 0
    for start in range(slab.start, slab.stop, _PIECE):
        stop = min(start + _PIECE, slab.stop)
        for span in placed.spans(start, stop):
            part = held[span.start - start : span.stop - start]
            if not file.read(span.file, span.offset, part):
                return False
        total = check_sum(held[: stop - start], total)
    return total == slab.sum

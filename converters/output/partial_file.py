"""A file that is being written, and the journal of what is in it: what `--resume` goes on with.

`.NAME.partial` has the output's full size from the start, but zeros where its first bytes belong, so that no
reader takes it for a pytree. `.NAME.partial.journal` has a line for each leaf that is written, with sums;
after a power cut it may claim what never came to the disk, so nothing of it is believed unless the sums of
the file's bytes agree.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from converters.errors import OutputError

_VERSION = 1


@dataclass(frozen=True)
class Slab:
    """A stretch of a leaf's bytes that is written.

    Attributes:
        start: its first byte in the leaf.
        stop: the byte after its last.
        sum: its check sum (`converters.output.examine.check_sum`).
        not_finite: how many of its numbers are NaN or infinite.
    """

    start: int
    stop: int
    sum: int
    not_finite: int


class PartialFile:
    """The file under its hidden name, locked against a second conversion to the same output.

    Attributes:
        output: the name that it is to take.
        path: the hidden name.
        descriptor: the open file.
        claimed: leaf → its slabs, of an earlier run of the same conversion; to be verified.
        left_over: whether an earlier run's file was there.
    """

    def __init__(self, output: Path, fingerprint: str, size: int, *, resume: bool, anew: bool):
        self.output = output
        self.path = partial_path(output)
        self._journal_path = self.path.with_name(f"{self.path.name}.journal")
        self.descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            self._lock(output)
            self.left_over = os.fstat(self.descriptor).st_size > 0
            head = json.dumps([_VERSION, fingerprint, size])
            self.claimed = self._claims(output, head, anew=anew) if resume else {}
            if not self.claimed:
                # Zeros everywhere again; what an earlier run wrote must not show through.
                os.ftruncate(self.descriptor, 0)
            os.ftruncate(self.descriptor, size)
            self._journal = os.open(
                self._journal_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666
            )
            os.write(self._journal, f"{head}\n".encode())
        except BaseException:
            os.close(self.descriptor)
            raise

    def record(self, path: str, slabs: Sequence[Slab]) -> None:
        """Note that a leaf is written."""
        row = [path, [[slab.start, slab.stop, slab.sum, slab.not_finite] for slab in slabs]]
        os.write(self._journal, f"{json.dumps(row)}\n".encode())

    def close(self) -> None:
        """Let go of the files, which stay."""
        os.close(self._journal)
        os.close(self.descriptor)

    def take_name(self) -> None:
        """Give the file the output's name."""
        self._journal_path.unlink()
        self.path.replace(self.output)

    def remove(self) -> None:
        """Delete whatever is left under the hidden names."""
        for path in (self._journal_path, self.path):
            with suppress(OSError):
                path.unlink()

    def _lock(self, output: Path) -> None:
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever held the lock until now has renamed this very file to the output.
            moved = not os.path.samestat(os.fstat(self.descriptor), os.stat(self.path))
        except (BlockingIOError, FileNotFoundError):
            moved = True
        if moved:
            raise OutputError(
                f"another conversion is writing {output} at this moment",
                "wait for it, or choose another output",
            )

    def _claims(self, output: Path, head: str, *, anew: bool) -> Mapping[str, tuple[Slab, ...]]:
        try:
            first, *lines = self._journal_path.read_text("utf-8", "replace").splitlines()
        except (OSError, ValueError):
            return {}  # no journal: nothing was finished
        if first != head:
            if anew:
                return {}
            raise OutputError(
                f"{self.path} is of another conversion (other options, or the checkpoint changed)",
                "give what it was begun with, or start anew (--force)",
            )
        found = {}
        for line in lines:
            try:
                path, rows = json.loads(line)
                found[str(path)] = tuple(Slab(*map(int, row)) for row in rows)
            except (ValueError, TypeError):
                break  # cut off by the interruption
        return found


def partial_path(output: Path) -> Path:
    """Where an output is while it is being written."""
    return output.with_name(f".{output.name}.partial")

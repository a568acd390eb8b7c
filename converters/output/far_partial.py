"""Unfinished output in a bucket: written object by object, completed by the last object.

Nothing can be renamed in a bucket. Each object appears when it is complete. In a folder output, the
index (or orbax's marks) comes last, so that no reader takes an incomplete output for a pytree. The
journal is a folder `.NAME.partial` beside the output. Its small objects record the written objects
with their versions, for `--resume`.

If several processes write one output, each sends the objects of its share and keeps a journal of
them. Work that only one process may do (deleting old objects, completing the output) is done by
process 0, after all others are done.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from converters.errors import ConversionError, OutputError, RemoteError
from converters.hosts import ALONE, Hosts, shares
from converters.output.layouts import FrameBytes, OutputLayout, PlacedLeaf
from converters.output.partial import Slab
from converters.output.safetensors_layout import INDEX_NAME
from converters.remote.buckets import call_client
from converters.remote.retries import TemporaryError
from converters.remote.store import StoreSource
from converters.remote.writing import Checksum, Objects, WrittenObject

# Bytes of an object sent in several requests; gs:// requires a multiple of 256 KiB.
PART_BYTES = 32 << 20
_WAITING_BYTES = 128 << 20
_VERSION = 1
_SECONDS = 2.0  # between two objects of the journal
# orbax's mark of a complete checkpoint where nothing can be renamed.
_ORBAX_MARK = "commit_success.txt"
_ORBAX_INDEX = "_METADATA"
_PROBE = "probe-"
_AGAIN = "run the same command with --resume"
Bytes = np.ndarray[Any, Any]  # uint8


def waiting_bytes(flight_bytes: int) -> int:
    """Return the number of bytes of an object that may wait for earlier ones, for a limit on bytes in
    flight."""
    return max(2 * PART_BYTES, min(_WAITING_BYTES, flight_bytes))


class FarPartial:
    """Output in a bucket, until it is complete.

    Args:
        output: the location of the output.
        layout: the layout of the output.
        fingerprint: the fingerprint of this conversion.
        resume: whether to keep the objects of an earlier run.
        anew: whether to start over if the earlier run was another conversion.
        hosts: the processes that write it together.
        flight_bytes: the limit on bytes in flight (`waiting_bytes`).

    Attributes:
        output: its location.
        claimed: leaf → its slabs from an earlier run, in objects that are unchanged since.
        left_over: whether objects of an earlier run exist.

    Raises:
        OutputError: the output to resume belongs to another conversion.
        RemoteError: the bucket refuses, or does not answer.
        HostsError: another process died or failed.
    """

    def __init__(
        self,
        output: StoreSource,
        layout: OutputLayout,
        fingerprint: str,
        *,
        resume: bool,
        anew: bool,
        hosts: Hosts = ALONE,
        flight_bytes: int = _WAITING_BYTES,
    ) -> None:
        assert hosts.count == 1 or layout.is_folder
        self.output = output
        self._layout = layout
        self._hosts = hosts
        self._objects = Objects(output)
        self._journal = Journal(self._objects, output)
        self._index = layout.frames[0].file
        self._leaves: dict[str, list[str]] = defaultdict(list)
        for location in layout.placed:
            for file in {stretch.file for stretch in location.stretches}:
                self._leaves[file].append(location.leaf.path)
        self._files_of: dict[str, list[str]] = defaultdict(list)
        for file, paths in self._leaves.items():
            for path in paths:
                self._files_of[path].append(file)
        self.left_over = self._journal.there
        begun = hosts.from_first(lambda: self._begun(fingerprint, resume=resume, anew=anew))
        self._done = {file: Claim.of(row) for file, row in begun.items()}
        self.claimed: dict[str, tuple[Slab, ...]] = {}
        for claim in self._done.values():
            for path, slabs in claim.slabs.items():
                if all(file in self._done for file in self._files_of[path]):
                    self.claimed[path] = slabs
        if not hosts.first:
            self._journal.join(fingerprint)
        self._mine = self._share()
        self._theirs: dict[str, WrittenObject] = {}
        frames: dict[str, list[FrameBytes]] = defaultdict(list)
        for frame in layout.frames:
            frames[frame.file].append(frame)
        self._sending = {
            file: _Object(
                self._objects,
                self._location(file),
                size,
                frames[file],
                held=not layout.is_folder,
                waiting=waiting_bytes(flight_bytes),
            )
            for file, size in layout.sizes.items()
            if file in self._mine
        }
        self._slabs: dict[str, tuple[Slab, ...]] = dict(self.claimed)
        self._lock = threading.Lock()

    def _begun(self, fingerprint: str, *, resume: bool, anew: bool) -> dict[str, Any]:
        """Return file → claim of each object that is kept, and delete the other objects of an earlier
        run."""
        there = self._objects.below(self.output) if self._layout.is_folder else {}
        claims = self._journal.claims(fingerprint, anew=anew) if resume else {}
        done = {
            file: claim
            for file, claim in claims.items()
            if file in self._leaves and there.get(file) == claim.written
        }
        # Marks first: from here on nothing looks complete.
        marks = [file for file in (_ORBAX_MARK, self._index) if file in there]
        self._objects.delete(self._location(file) for file in marks)
        rest = [file for file in there if file not in done and file not in marks]
        self._objects.delete(self._location(file) for file in rest)
        self._journal.begin(fingerprint, done)
        return {file: claim.row() for file, claim in done.items()}

    def _share(self) -> frozenset[str]:
        """Return the files that this process writes: the chunks of one array stay together."""
        groups: dict[str, dict[str, int]] = defaultdict(dict)
        parts: dict[str, list[PlacedLeaf]] = defaultdict(list)
        for location in self._layout.placed:
            leaf_path = self._layout.wholes.get(location.leaf.path, location.leaf).path
            for file in {stretch.file for stretch in location.stretches} - self._done.keys():
                group = leaf_path if len(self._leaves[file]) == 1 else file
                groups[group][file] = self._layout.sizes[file]
                parts[group].append(location)
        names = list(groups)

        def divisible(number: int) -> bool:
            # All processes must agree: the result does not depend on the location of the tensors.
            leaves = [location.leaf for location in parts[names[number]]]
            return not any(leaf.overreads is None or leaf.overreads(leaf.box) for leaf in leaves)

        dealt = shares(list(groups.values()), self._hosts.count, divisible)
        return frozenset(file for file in dealt if dealt[file] == self._hosts.process.index)

    def leaves_of_process(self, placed: Sequence[PlacedLeaf]) -> list[PlacedLeaf]:
        """Return the leaves of this process's share; for process 0 also those written before."""
        return [
            location
            for location in placed
            if any(stretch.file in self._mine for stretch in location.stretches)
            or (
                self._hosts.first and (location.leaf.path in self.claimed or not location.stretches)
            )
        ]

    def combined(
        self, not_finite: Mapping[str, int], digests: Mapping[str, str]
    ) -> tuple[dict[str, int], dict[str, str]]:
        """Return the results of all processes for the leaves that they wrote."""
        written = {
            file: [sending.written.size, sending.written.version, sending.written.crc32c]
            for file, sending in self._sending.items()
            if sending.written is not None
        }
        counts: dict[str, int] = {}
        digests_of_all: dict[str, str] = {}
        leaves_of_process: list[Any] = [dict(not_finite), dict(digests), written]
        for results in self._hosts.gather(leaves_of_process):
            counts |= results[0]
            digests_of_all |= results[1]
            self._theirs |= {file: WrittenObject(*row) for file, row in results[2].items()}
        return counts, digests_of_all

    def require_all(self) -> None:
        """Check that no other process has died or failed."""
        self._hosts.require_all()

    def verified(self, placed: Sequence[PlacedLeaf]) -> dict[str, tuple[Slab, ...]]:
        """Return the leaves that need not be written, because the objects of an earlier run are
        unchanged."""
        return {
            location.leaf.path: self.claimed[location.leaf.path]
            for location in placed
            if location.leaf.path in self.claimed
        }

    def write(self, file: str, offset: int, data: Bytes) -> None:
        """Take bytes of an object; whoever brings the missing bytes sends the object."""
        sending = self._sending.get(file)
        if sending is not None:  # a leaf may lie in several objects, some already written
            sending.put(offset, memoryview(data.data))
            self._completed(file)

    def read(self, file: str, offset: int, into: Bytes) -> bool:
        """Read bytes back."""
        sending = self._sending.get(file)
        if sending is not None and sending.held:
            raise OutputError(
                f"{self.output} is one object, whose checksums are unknown before the upload ends",
                "leave --checksums out, or write several objects (--max-shard-size)",
            )
        data = self._objects.part(self._location(file), offset, offset + into.size)
        into[: len(data)] = np.frombuffer(data, np.uint8)
        return len(data) == into.size

    def record(self, path: str, slabs: Sequence[Slab]) -> None:
        """Record that all bytes of a leaf were taken."""
        with self._lock:
            self._slabs[path] = tuple(slabs)
        for file in self._files_of[path]:
            self._completed(file)

    def write_frames(self, frames: Sequence[FrameBytes]) -> None:
        """Send the objects without values, except the index."""
        if not self._hosts.first:
            return
        apart = [
            frame
            for frame in frames
            if frame.file not in self._leaves and frame.file != self._index
        ]
        self._objects.each(
            lambda frame: self._objects.put(self._location(frame.file), frame.data), apart
        )

    def sync(self) -> None:
        """Check that all objects except the completing one exist, as they were sent.

        Raises:
            OutputError: an object differs.
        """
        if not self._layout.is_folder or not self._hosts.first:
            return
        there = self._objects.below(self.output)
        for file, size in self._layout.sizes.items():
            written = there.get(file)
            wanted = self._theirs.get(file, written)
            if file != self._index and (
                written is None or written.size != size or written != wanted
            ):
                raise OutputError(
                    f"{self._location(file)} differs from the data written to it",
                    "check that nothing else writes there, and run it again",
                )

    def take_name(self) -> None:
        """Complete the output: send the only object, or the index."""
        self._journal.tell()  # after a kill before the last mark, nothing has to be sent again
        self._hosts.gather("all that was read is unchanged")
        self._hosts.from_first(self._complete)

    def _complete(self) -> None:
        self._journal.require_sole_run()
        for sending in self._sending.values():
            sending.finish()
        if self._layout.is_folder:
            data = b"".join(f.data for f in self._layout.frames if f.file == self._index)
            self._objects.put(self._location(self._index), data)
            if self._index == _ORBAX_INDEX:
                self._objects.put(self._location(_ORBAX_MARK), b"written by tpu-migrate\n")
        with suppress(ConversionError, FileNotFoundError):
            self._journal.remove()

    def close(self) -> None:
        """Abandon objects that are being sent; nothing of them appears."""
        for sending in self._sending.values():
            sending.abandon()

    def keep(self) -> None:
        """Write all records to the journal, as far as the bucket still accepts them."""
        with suppress(ConversionError, FileNotFoundError):
            self._journal.tell()

    def remove(self) -> None:
        """Delete the written objects; in a shared output they stay for `--resume`."""
        if self._hosts.count > 1:
            self.keep()
            return
        with suppress(ConversionError, FileNotFoundError):
            if self._layout.is_folder:
                self._objects.delete(map(self._location, self._objects.below(self.output)))
            self._journal.remove()

    def _completed(self, file: str) -> None:
        """Record an object in the journal that exists and whose leaves are known."""
        with self._lock:
            sending = self._sending.get(file)
            paths = self._leaves[file]
            if (
                sending is None
                or sending.written is None
                or file in self._done
                or not all(path in self._slabs for path in paths)
            ):
                return
            slabs = {path: self._slabs[path] for path in paths}
            self._done[file] = Claim(sending.written, slabs)
            claim = self._done[file]
        self._journal.note(file, claim)

    def _location(self, file: str) -> StoreSource:
        return self.output / file if file else self.output


class Claim:
    """Object written by a run: the bucket's description of it, and the slabs of its leaves."""

    def __init__(self, written: WrittenObject, slabs: Mapping[str, tuple[Slab, ...]]) -> None:
        self.written = written
        self.slabs = slabs

    def row(self) -> list[Any]:
        """Return the claim as plain values."""
        slabs = {
            path: [[slab.start, slab.stop, slab.sum, slab.not_finite] for slab in slabs]
            for path, slabs in self.slabs.items()
        }
        return [self.written.size, self.written.version, self.written.crc32c, slabs]

    @staticmethod
    def of(row: Any) -> Claim:
        """Create the claim of a row. Raise ValueError or TypeError if the row is invalid."""
        size, version, crc32c, slabs = row
        slabs_by_leaf = {
            path: tuple(Slab(*map(int, slab)) for slab in rows) for path, rows in slabs.items()
        }
        return Claim(WrittenObject(int(size), str(version), str(crc32c)), slabs_by_leaf)


class Journal:
    """Journal of the written objects, in small objects of a folder beside the output.

    Args:
        objects: the objects of the bucket.
        output: the output.

    Attributes:
        there: whether a journal existed before.
    """

    def __init__(self, objects: Objects, output: StoreSource) -> None:
        self._objects = objects
        self._output = output
        self._folder = output.with_name(f".{output.name}.partial")
        self._token = secrets.token_hex(8)
        self._number = 0
        self._rows: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._last = time.monotonic()
        names = objects.below(self._folder)
        self.there = not all(name.startswith(_PROBE) for name in names)

    def require_permission(self) -> None:
        """Check that the bucket accepts writes.

        Raises:
            RemoteError: it does not accept them.
        """
        probe = self._folder / f"{_PROBE}{self._token}"
        self._objects.put(probe, b"")
        self._objects.delete([probe])

    def claims(self, fingerprint: str, *, anew: bool) -> dict[str, Claim]:
        """Return file → claim, from runs of the same conversion.

        Raises:
            OutputError: the runs belong to another conversion, and `anew` is off.
        """
        names = sorted(self._objects.below(self._folder))
        contents = self._objects.each(lambda name: self._objects.get(self._folder / name), names)
        claims: dict[str, Claim] = {}
        for content in contents:
            try:
                head, rows = json.loads(content or b"")
                if head != [_VERSION, fingerprint]:
                    if anew:
                        return {}
                    raise OutputError(
                        f"{self._folder} is of another conversion (other options, or the checkpoint "
                        "changed)",
                        "use the options that it started with, or start over (--force)",
                    )
                claims |= {file: Claim.of(row) for file, row in rows.items()}
            except (ValueError, TypeError, AttributeError):
                continue  # not an object of this program
        return claims

    def begin(self, fingerprint: str, claims: Mapping[str, Claim]) -> None:
        """Start a journal of this run with the kept claims, and delete earlier journals."""
        self._head = [_VERSION, fingerprint]
        older = list(self._objects.below(self._folder))
        self._rows = {file: claim.row() for file, claim in claims.items()}
        self._write("begin")
        self._objects.delete(self._folder / name for name in older)

    def join(self, fingerprint: str) -> None:
        """Start a journal beside that of process 0.

        Raises:
            RemoteError: this process may not write there.
        """
        self._head = [_VERSION, fingerprint]
        self.require_permission()

    def note(self, file: str, claim: Claim) -> None:
        """Record a written object; it is written now, or with the next one."""
        with self._lock:
            self._rows[file] = claim.row()
            if time.monotonic() - self._last > _SECONDS:
                self._last = time.monotonic()
                self._write(f"{self._number:06}")

    def tell(self) -> None:
        """Write the records that are not written yet."""
        with self._lock:
            if self._rows:
                self._write(f"{self._number:06}")

    def require_sole_run(self) -> None:
        """Check that no other run has started to write the same output.

        Raises:
            OutputError: another run has started.
        """
        if self._name("begin") not in self._objects.below(self._folder):
            raise OutputError(
                f"another conversion started to write {self._output}",
                "wait for it, or choose another output",
            )

    def remove(self) -> None:
        """Delete the journal."""
        self._objects.delete(self._folder / name for name in self._objects.below(self._folder))

    def _write(self, what: str) -> None:
        data = json.dumps([self._head, self._rows]).encode()
        self._objects.put(self._folder / self._name(what), data)
        self._rows = {}
        self._number += 1

    def _name(self, what: str) -> str:
        return f"{self._token}-{what}.json"


class _Object:
    """Object that is being sent, in consecutive parts.

    Args:
        objects: the objects of the bucket.
        location: the location of the object.
        size: its size in bytes.
        frames: its bytes that are not values.
        held: whether its end waits for `finish`, because it is the whole output.
        waiting: the number of bytes that may wait for earlier ones.

    Attributes:
        written: the bucket's description of it; None until it exists.
    """

    def __init__(
        self,
        objects: Objects,
        location: StoreSource,
        size: int,
        frames: Sequence[FrameBytes],
        *,
        held: bool,
        waiting: int,
    ) -> None:
        self._objects = objects
        self._location = location
        self._size = size
        self._frames = frames
        self.held = held
        self._waiting = waiting
        self.written: WrittenObject | None = None
        self._parts: dict[int, bytearray] = {}
        self._filled: dict[int, int] = defaultdict(int)
        self._next = 0
        self._count = -(-size // PART_BYTES)
        self._sum = Checksum()
        self._stream: Any = None
        self._sending = False
        self._condition = threading.Condition()
        self._framed = False

    def put(self, offset: int, data: memoryview) -> None:
        """Take bytes, and send those that follow the sent ones."""
        with self._condition:
            if not self._framed:
                self._framed = True
                for frame in self._frames:
                    self._take(frame.offset, memoryview(frame.data))
            self._take(offset, data)
        self._send()

    def finish(self) -> None:
        """Send the end, so that the object appears."""
        if self.written is None:
            self.held = False
            self._send()
        if self.written is None:
            raise OutputError(f"{self._location} is not complete", _AGAIN)

    def abandon(self) -> None:
        """Abandon an object that is not complete."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.closed = True  # otherwise garbage collection would complete the object
            with suppress(Exception):  # the other side forgets it eventually, too
                stream.discard()

    def _take(self, offset: int, data: memoryview) -> None:
        done = 0
        while done < len(data):
            number, within = divmod(offset + done, PART_BYTES)
            if number not in self._parts:
                length = min(PART_BYTES, self._size - number * PART_BYTES)
                self._parts[number] = bytearray(length)
            part = self._parts[number]
            count = min(len(part) - within, len(data) - done)
            part[within : within + count] = data[done : done + count]
            self._filled[number] += count
            done += count

    def _send(self) -> None:
        with self._condition:
            # Senders make room, so this wait is finite.
            while self._sending and len(self._parts) * PART_BYTES > self._waiting:
                self._condition.wait()
            if self._sending:
                return
            self._sending = True
        part: bytearray | None = None
        try:
            while True:
                with self._condition:
                    part = self._due()
                    self._sending = part is not None
                    self._condition.notify_all()
                if part is None:
                    return
                self._send_part(part)
        except BaseException:
            with self._condition:
                self._sending = False
                self._condition.notify_all()
            raise

    def _due(self) -> bytearray | None:
        number = self._next
        part = self._parts.get(number)
        last = number == self._count - 1
        if part is None or self._filled[number] < len(part) or (last and self.held):
            return None
        self._next += 1
        return self._parts.pop(number)

    def _send_part(self, part: bytearray) -> None:
        self._sum.add(memoryview(part))
        if self._count == 1:
            self._objects.put(self._location, memoryview(part))
        else:
            self._streamed(part)
        if self._next == self._count:
            self._require_right()

    def _streamed(self, part: bytearray) -> None:
        """Send a part of a larger object; its client retries by itself."""
        objects = self._objects

        def send() -> None:
            if self._stream is None:
                self._stream = objects.fs.open(
                    objects.path(self._location), "wb", block_size=PART_BYTES, **self._options()
                )
            self._stream.write(bytes(part))
            if self._next == self._count:
                stream, self._stream = self._stream, None
                stream.close()

        try:
            call_client(self._location, send)
        except TemporaryError as error:
            raise RemoteError(f"{self._location} could not be sent ({error})", _AGAIN) from None

    def _options(self) -> dict[str, Any]:
        # The checksum is computed here; gcsfs would compute another one in the thread that all
        # requests share.
        return {"consistency": "none"} if self._objects.protocol in ("gs", "gcs") else {}

    def _require_right(self) -> None:
        written = self._objects.written(self._location)
        computed = self._sum.text()
        if (
            written is None
            or written.size != self._size
            or (written.crc32c and computed and written.crc32c != computed)
        ):
            raise RemoteError(f"{self._location} differs from the data sent to it", _AGAIN)
        self.written = written


def require_far_output(output: StoreSource, *, folder: bool, overwrite: bool) -> None:
    """Check before any work whether an output can be written to a bucket.

    Args:
        output: the location of the output.
        folder: whether the output is a folder.
        overwrite: whether an older output may be replaced.

    Raises:
        OutputError: something else exists there, or an older output that may not be replaced.
        RemoteError: no permission to write, no such bucket, no credentials.
    """
    objects = Objects(output)
    existing = objects.below(output)
    exists = OutputError(
        f"{output} exists already", "name another output, or overwrite it (--force)"
    )
    if objects.written(output) is not None:
        if folder:
            raise OutputError(f"{output} is a file", "choose another output")
        if not overwrite:
            raise exists
    journal = Journal(objects, output)
    if existing and not folder:
        raise OutputError(f"{output} is a folder", "name a file")
    # After an interrupted conversion to orbax, the index may exist without the mark.
    marks = (_ORBAX_MARK, INDEX_NAME, *(() if journal.there else (_ORBAX_INDEX,)))
    marked = any(name in existing for name in marks)
    if existing and not marked and not journal.there:
        raise OutputError(f"{output} is a folder with something else", "choose another output")
    if marked and not overwrite:
        raise exists
    try:
        journal.require_permission()
    except FileNotFoundError:
        raise OutputError(f"the bucket of {output} does not exist", "create it first") from None

"""Objects of a bucket, written, read and deleted: each whole or not there."""

from __future__ import annotations

import base64
import posixpath
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from converters.checkpoint.source import Source
from converters.errors import OutputError
from converters.remote.buckets import BucketStore, called, filesystem
from converters.remote.names import is_url, source_of
from converters.remote.retries import persistent
from converters.remote.store import StoreSource

_Result = TypeVar("_Result")

# Where an object appears when all of it is there, whatever happens to who writes it.
WHOLE = ("gs", "gcs", "s3", "s3a", "az", "abfs", "abfss", "memory")
_AT_ONCE = 16


@dataclass(frozen=True)
class WrittenObject:
    """An object as the bucket has it.

    Attributes:
        size: in bytes.
        version: what another content would not have.
        crc32c: of its content, where the bucket says it; else "".
    """

    size: int
    version: str
    crc32c: str = ""


def destination(name: Source | str) -> Source:
    """The place of an output that a user names; nothing is asked of a bucket yet.

    Raises:
        OutputError: a URL of what cannot be written so that nothing half-written looks complete.
        MissingDependencyError: the package is lacking that speaks its protocol.
    """
    if not isinstance(name, str):
        return name
    if not is_url(name) or name.startswith("file://"):
        return source_of(name) if is_url(name) else Path(name)
    protocol = name.partition("://")[0].lower()
    if protocol not in WHOLE:
        raise OutputError(
            f"{protocol}:// cannot be written to: there half an object may look whole",
            "write to a path, or to gs://, s3:// or az://",
        )
    fs = filesystem(protocol, name, name.partition("?")[0])
    path = fs._strip_protocol(name.rstrip("/"))
    folder, _, last = path.rpartition("/")
    if not folder or not last:
        raise OutputError(f"{name} names a bucket only", "add the name of the output")
    return StoreSource(BucketStore(protocol, folder, f"{protocol}://{folder}", name), last)


class Objects:
    """The objects at and below the place of an output.

    Args:
        place: of the output; `destination` gave it.
    """

    def __init__(self, place: StoreSource) -> None:
        assert isinstance(place.store, BucketStore)
        self.place = place
        self.fs = filesystem(place.store.protocol, place.store.url, place)
        self.protocol = place.store.protocol

    def path(self, place: StoreSource) -> str:
        """What the file system calls a place."""
        assert isinstance(place.store, BucketStore)
        return posixpath.join(place.store.root, place.key)

    def put(self, place: StoreSource, data: bytes | memoryview) -> None:
        """Make an object of these bytes, or replace it."""
        self.ask(place, lambda: self.fs.pipe_file(self.path(place), bytes(data)))

    def get(self, place: StoreSource) -> bytes | None:
        """The content of an object; None: there is none."""
        try:
            data: bytes = self.ask(place, lambda: self.fs.cat_file(self.path(place)))
        except FileNotFoundError:
            return None
        return data

    def part(self, place: StoreSource, start: int, end: int) -> bytes:
        """Some bytes of an object."""
        data: bytes = self.ask(
            place, lambda: self.fs.cat_file(self.path(place), start=start, end=end)
        )
        return data

    def written(self, place: StoreSource) -> WrittenObject | None:
        """What the bucket says of an object; None: there is none."""
        try:
            info = self.ask(place, lambda: self.fs.info(self.path(place)))
        except FileNotFoundError:
            return None
        return _written(info) if info["type"] == "file" else None

    def below(self, place: StoreSource) -> dict[str, WrittenObject]:
        """The objects below a place, by the rest of their keys."""
        root = self.path(place)

        def found() -> dict[str, Any]:
            try:
                listed: dict[str, Any] = self.fs.find(root, detail=True)
            except FileNotFoundError:
                return {}
            return listed

        return {
            posixpath.relpath(name.lstrip("/"), root.lstrip("/")): _written(info)
            for name, info in self.ask(place, found).items()
            if name.strip("/") != root.strip("/") and info["type"] == "file"
        }

    def delete(self, places: Iterable[StoreSource]) -> None:
        """Delete objects, those that are there."""

        def one(place: StoreSource) -> None:
            with suppress(FileNotFoundError):
                self.ask(place, lambda: self.fs.rm_file(self.path(place)))

        self.each(one, places)

    def each(self, action: Callable[[Any], _Result], items: Iterable[Any]) -> list[_Result]:
        """What the action gives for each, several at a time."""
        with ThreadPoolExecutor(_AT_ONCE, "objects") as pool:
            return list(pool.map(action, items))

    def ask(self, place: StoreSource, action: Callable[[], _Result]) -> _Result:
        """What the action gives, tried again where that may help."""
        return persistent(lambda: called(place, action), place)


def _written(info: Any) -> WrittenObject:
    names = ("generation", "ETag", "etag", "VersionId", "created", "mtime")
    version = next((info[name] for name in names if info.get(name) is not None), "")
    return WrittenObject(int(info["size"] or 0), str(version), str(info.get("crc32c") or ""))


class Checksum:
    """The CRC-32C of bytes as they come; none where the package for it is lacking."""

    def __init__(self) -> None:
        try:
            self._sum: Any = import_module("google_crc32c").Checksum()
        except ImportError:
            self._sum = None

    def add(self, data: bytes | memoryview) -> None:
        """Take the next bytes."""
        if self._sum is not None:
            self._sum.update(bytes(data))

    def text(self) -> str:
        """As a bucket says it; "" if it is not known."""
        return "" if self._sum is None else base64.b64encode(self._sum.digest()).decode()

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

from converters.checkpoint.place import Place
from converters.errors import OutputError
from converters.remote.buckets import BucketStore, called, filesystem
from converters.remote.names import is_url, place_of
from converters.remote.retries import persistent
from converters.remote.store import StorePlace

_Result = TypeVar("_Result")

# Where an object appears when all of it is there, whatever happens to who writes it.
WHOLE = ("gs", "gcs", "s3", "s3a", "az", "abfs", "abfss", "memory")
_AT_ONCE = 16


@dataclass(frozen=True)
class Written:
    """An object as the bucket has it.

    Attributes:
        size: in bytes.
        version: what another content would not have.
        crc32c: of its content, where the bucket says it; else "".
    """

    size: int
    version: str
    crc32c: str = ""


def destination(name: Place | str) -> Place:
    """The place of an output that a user names; nothing is asked of a bucket yet.

    Raises:
        OutputError: a URL of what cannot be written so that nothing half-written looks complete.
        MissingDependencyError: the package is lacking that speaks its protocol.
    """
    if not isinstance(name, str):
        return name
    if not is_url(name) or name.startswith("file://"):
        return place_of(name) if is_url(name) else Path(name)
    protocol = name.partition("://")[0].lower()
    if protocol not in WHOLE:
        raise OutputError(
            f"{protocol}:// is not supported for output: an interrupted upload could look complete",
            "write to a path, or to gs://, s3:// or az://",
        )
    fs = filesystem(protocol, name, name.partition("?")[0])
    path = fs._strip_protocol(name.rstrip("/"))
    folder, _, last = path.rpartition("/")
    if not folder or not last:
        raise OutputError(f"{name} names a bucket only", "add the name of the output")
    return StorePlace(BucketStore(protocol, folder, f"{protocol}://{folder}", name), last)


class Objects:
    """The objects at and below the place of an output.

    Args:
        place: of the output; `destination` gave it.
    """

    def __init__(self, place: StorePlace) -> None:
        assert isinstance(place.store, BucketStore)
        self.place = place
        self.fs = filesystem(place.store.protocol, place.store.url, place)
        self.protocol = place.store.protocol

    def path(self, place: StorePlace) -> str:
        """What the file system calls a place."""
        assert isinstance(place.store, BucketStore)
        return posixpath.join(place.store.root, place.key)

    def put(self, place: StorePlace, data: bytes | memoryview) -> None:
        """Make an object of these bytes, or replace it."""
        self.ask(place, lambda: self.fs.pipe_file(self.path(place), bytes(data)))

    def get(self, place: StorePlace) -> bytes | None:
        """The content of an object; None: there is none."""
        try:
            data: bytes = self.ask(place, lambda: self.fs.cat_file(self.path(place)))
        except FileNotFoundError:
            return None
        return data

    def part(self, place: StorePlace, start: int, end: int) -> bytes:
        """Some bytes of an object."""
        data: bytes = self.ask(
            place, lambda: self.fs.cat_file(self.path(place), start=start, end=end)
        )
        return data

    def written(self, place: StorePlace) -> Written | None:
        """What the bucket says of an object; None: there is none."""
        try:
            info = self.ask(place, lambda: self.fs.info(self.path(place)))
        except FileNotFoundError:
            return None
        return _written(info) if info["type"] == "file" else None

    def below(self, place: StorePlace) -> dict[str, Written]:
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

    def delete(self, places: Iterable[StorePlace]) -> None:
        """Delete objects, those that are there."""

        def one(place: StorePlace) -> None:
            with suppress(FileNotFoundError):
                self.ask(place, lambda: self.fs.rm_file(self.path(place)))

        self.each(one, places)

    def each(self, action: Callable[[Any], _Result], items: Iterable[Any]) -> list[_Result]:
        """What the action gives for each, several at a time."""
        with ThreadPoolExecutor(_AT_ONCE, "objects") as pool:
            return list(pool.map(action, items))

    def ask(self, place: StorePlace, action: Callable[[], _Result]) -> _Result:
        """What the action gives, tried again where that may help."""
        return persistent(lambda: called(place, action), place)


def _written(info: Any) -> Written:
    names = ("generation", "ETag", "etag", "VersionId", "created", "mtime")
    version = next((info[name] for name in names if info.get(name) is not None), "")
    return Written(int(info["size"] or 0), str(version), str(info.get("crc32c") or ""))


class Sum:
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

"""Objects of a bucket, written, read and deleted atomically."""

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
from converters.remote.buckets import BucketStore, call_client, filesystem
from converters.remote.names import is_url, source_of
from converters.remote.retries import with_retries
from converters.remote.store import StoreSource

_Result = TypeVar("_Result")

# Stores in which an object appears only when it is complete, whatever happens to the writer.
WHOLE = ("gs", "gcs", "s3", "s3a", "az", "abfs", "abfss", "memory")
_AT_ONCE = 16


@dataclass(frozen=True)
class WrittenObject:
    """Object as reported by the bucket.

    Attributes:
        size: its size in bytes.
        version: the identity of its content.
        crc32c: the CRC-32C of its content, if the bucket reports it; else "".
    """

    size: int
    version: str
    crc32c: str = ""


def destination(name: Source | str) -> Source:
    """Return the location of an output named by the user, without a request to a bucket.

    Raises:
        OutputError: the URL's store cannot hide an incomplete object.
        MissingDependencyError: the package for the protocol is not installed.
    """
    if not isinstance(name, str):
        return name
    if not is_url(name) or name.startswith("file://"):
        return source_of(name) if is_url(name) else Path(name)
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
    return StoreSource(BucketStore(protocol, folder, f"{protocol}://{folder}", name), last)


class Objects:
    """Objects at and below the location of an output.

    Args:
        source: the location of the output, from `destination`.
    """

    def __init__(self, source: StoreSource) -> None:
        assert isinstance(source.store, BucketStore)
        self.source = source
        self.fs = filesystem(source.store.protocol, source.store.url, source)
        self.protocol = source.store.protocol

    def path(self, source: StoreSource) -> str:
        """Return the file system's name of a source."""
        assert isinstance(source.store, BucketStore)
        return posixpath.join(source.store.root, source.key)

    def put(self, source: StoreSource, data: bytes | memoryview) -> None:
        """Create or replace an object with these bytes."""
        self.ask(source, lambda: self.fs.pipe_file(self.path(source), bytes(data)))

    def get(self, source: StoreSource) -> bytes | None:
        """Return the content of an object, or None."""
        try:
            data: bytes = self.ask(source, lambda: self.fs.cat_file(self.path(source)))
        except FileNotFoundError:
            return None
        return data

    def part(self, source: StoreSource, start: int, end: int) -> bytes:
        """Return some bytes of an object."""
        data: bytes = self.ask(
            source, lambda: self.fs.cat_file(self.path(source), start=start, end=end)
        )
        return data

    def written(self, source: StoreSource) -> WrittenObject | None:
        """Return the bucket's description of an object, or None."""
        try:
            info = self.ask(source, lambda: self.fs.info(self.path(source)))
        except FileNotFoundError:
            return None
        return _written(info) if info["type"] == "file" else None

    def below(self, source: StoreSource) -> dict[str, WrittenObject]:
        """Return the objects below a source, by the rest of their keys."""
        root = self.path(source)

        def list_objects() -> dict[str, Any]:
            try:
                listed: dict[str, Any] = self.fs.find(root, detail=True)
            except FileNotFoundError:
                return {}
            return listed

        return {
            posixpath.relpath(name.lstrip("/"), root.lstrip("/")): _written(info)
            for name, info in self.ask(source, list_objects).items()
            if name.strip("/") != root.strip("/") and info["type"] == "file"
        }

    def delete(self, sources: Iterable[StoreSource]) -> None:
        """Delete objects that exist."""

        def delete_object(source: StoreSource) -> None:
            with suppress(FileNotFoundError):
                self.ask(source, lambda: self.fs.rm_file(self.path(source)))

        self.each(delete_object, sources)

    def each(self, action: Callable[[Any], _Result], items: Iterable[Any]) -> list[_Result]:
        """Return the result of the action for each item, several at a time."""
        with ThreadPoolExecutor(_AT_ONCE, "objects") as pool:
            return list(pool.map(action, items))

    def ask(self, source: StoreSource, action: Callable[[], _Result]) -> _Result:
        """Return the result of the action, with retries."""
        return with_retries(lambda: call_client(source, action), source)


def _written(info: Any) -> WrittenObject:
    names = ("generation", "ETag", "etag", "VersionId", "created", "mtime")
    version = next((info[name] for name in names if info.get(name) is not None), "")
    return WrittenObject(int(info["size"] or 0), str(version), str(info.get("crc32c") or ""))


class Checksum:
    """CRC-32C of a stream of bytes; none if the package for it is missing."""

    def __init__(self) -> None:
        try:
            self._sum: Any = import_module("google_crc32c").Checksum()
        except ImportError:
            self._sum = None

    def add(self, data: bytes | memoryview) -> None:
        """Add the next bytes."""
        if self._sum is not None:
            self._sum.update(bytes(data))

    def text(self) -> str:
        """Return the sum in the bucket's form; "" if unknown."""
        return "" if self._sum is None else base64.b64encode(self._sum.digest()).decode()

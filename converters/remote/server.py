"""Files of any HTTP server that supports byte ranges."""

from __future__ import annotations

import posixpath
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from converters.errors import RemoteError
from converters.remote.far_file import HEAD_BYTES
from converters.remote.ranges import request_range, starts_at, total_of
from converters.remote.retries import with_retries
from converters.remote.store import FileStore, StoredFile, StoreSource

_ABSENT = frozenset({404, 410})
_EMPTY = 416  # status of a range request for an empty file


class ServerStore(FileStore):
    """Files below a URL; a server cannot list them.

    Args:
        root: the URL of the folder. Its user, password and query are sent with each request and
            appear in no message.
    """

    def __init__(self, root: str) -> None:
        super().__init__()
        parts = urlsplit(root)
        self._parts = parts
        host = parts.hostname or ""
        port = f":{parts.port}" if parts.port else ""
        self.shown = f"{parts.scheme}://{host}{port}{parts.path}".rstrip("/")
        self._entries: dict[str, StoredFile | None] = {}

    def entry(self, key: str) -> StoredFile | None:
        """Return the file of this key, requested with its first bytes, which are kept."""
        if key not in self._entries:
            source = StoreSource(self, key)
            self._entries[key] = with_retries(lambda: self._request(source), source)
        return self._entries[key]

    def names(self, folder: str) -> list[str]:
        """Return no names: a server cannot list files."""
        return []

    def fetch(self, key: str, entry: StoredFile, start: int, into: memoryview) -> None:
        """Read the bytes, if the server still has the same version."""
        source = StoreSource(self, key)
        end = start + len(into)
        answer = request_range(source, self._url(key), self._headers(entry), start, end, into)
        if answer.status_code in _ABSENT | {412} or (
            answer.status_code in (200, 206)
            and (_version(answer) != entry.version or total_of(answer) not in (None, entry.size))
        ):
            raise RemoteError(f"{source} was replaced while it was read", "start again")
        if answer.status_code != 206 or not starts_at(answer, start):
            raise _refused(source, answer)

    def _request(self, source: StoreSource) -> StoredFile | None:
        answer = request_range(source, self._url(source.key), {}, 0, HEAD_BYTES)
        if answer.status_code in _ABSENT:
            return None
        if answer.status_code == _EMPTY:
            return StoredFile(0, "")
        total = total_of(answer)
        if total is None:
            raise _refused(source, answer)
        data: bytes = answer.content
        if len(data) == min(total, HEAD_BYTES):
            self._kept[source.key] = [(0, data)]
        return StoredFile(total, _version(answer))

    def _url(self, key: str) -> str:
        path = posixpath.join(self._parts.path, quote(key))
        return urlunsplit(self._parts._replace(path=path, fragment=""))

    @staticmethod
    def _headers(entry: StoredFile) -> dict[str, str]:
        # A server must not match a weak ETag; versions are compared with the answer's in addition.
        return {"If-Match": entry.version} if entry.version.startswith('"') else {}


def server_source(url: str) -> StoreSource:
    """Return the source of a URL: a file, or a folder if the URL ends with `/`."""
    parts = urlsplit(url)
    folder, _, name = parts.path.rpartition("/")
    return StoreSource(ServerStore(urlunsplit(parts._replace(path=folder))), unquote(name))


def _version(answer: Any) -> str:
    """Return the ETag; without one, the time of the last change."""
    return answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""


def _refused(source: StoreSource, answer: Any) -> RemoteError:
    status = answer.status_code
    if status in (401, 403):
        return RemoteError(
            f"{source} may not be read (status {status})", "check the URL and its permissions"
        )
    if status == 200:
        return RemoteError(
            f"{source}: the server does not serve byte ranges", "download the file, and name that"
        )
    return RemoteError(f"{source} cannot be read (status {status})", "check the URL")

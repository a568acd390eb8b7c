"""Files of any HTTP server that gives byte ranges."""

from __future__ import annotations

import posixpath
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from converters.errors import RemoteError
from converters.remote.far_file import HEAD_BYTES
from converters.remote.ranges import asked, starts_at, total_of
from converters.remote.retries import persistent
from converters.remote.store import StoredFile, FileStore, StoreSource

_ABSENT = frozenset({404, 410})
_EMPTY = 416  # of a file without bytes nothing can be asked for


class ServerStore(FileStore):
    """The files below a URL; a server has no list of them.

    Args:
        root: the URL of the folder. What it has of user, password and query goes with each request,
            and into no message.
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
        """The file of this key, asked for with its first bytes, which are kept."""
        if key not in self._entries:
            place = StoreSource(self, key)
            self._entries[key] = persistent(lambda: self._asked(place), place)
        return self._entries[key]

    def names(self, folder: str) -> list[str]:
        """None are known."""
        return []

    def fetch(self, key: str, entry: StoredFile, start: int, into: memoryview) -> None:
        """Read the bytes, if the server still has what it had."""
        place = StoreSource(self, key)
        end = start + len(into)
        answer = asked(place, self._url(key), self._headers(entry), start, end, into)
        if answer.status_code in _ABSENT | {412} or (
            answer.status_code in (200, 206)
            and (_version(answer) != entry.version or total_of(answer) not in (None, entry.size))
        ):
            raise RemoteError(f"{place} was replaced while it was read", "start again")
        if answer.status_code != 206 or not starts_at(answer, start):
            raise _refused(place, answer)

    def _asked(self, place: StoreSource) -> StoredFile | None:
        answer = asked(place, self._url(place.key), {}, 0, HEAD_BYTES)
        if answer.status_code in _ABSENT:
            return None
        if answer.status_code == _EMPTY:
            return StoredFile(0, "")
        total = total_of(answer)
        if total is None:
            raise _refused(place, answer)
        data: bytes = answer.content
        if len(data) == min(total, HEAD_BYTES):
            self._kept[place.key] = [(0, data)]
        return StoredFile(total, _version(answer))

    def _url(self, key: str) -> str:
        path = posixpath.join(self._parts.path, quote(key))
        return urlunsplit(self._parts._replace(path=path, fragment=""))

    @staticmethod
    def _headers(entry: StoredFile) -> dict[str, str]:
        # Of a weak one no server may say that it matches; all are compared with the answer's besides.
        return {"If-Match": entry.version} if entry.version.startswith('"') else {}


def server_source(url: str) -> StoreSource:
    """The place of a URL: a file, or with a `/` at its end a folder."""
    parts = urlsplit(url)
    folder, _, name = parts.path.rpartition("/")
    return StoreSource(ServerStore(urlunsplit(parts._replace(path=folder))), unquote(name))


def _version(answer: Any) -> str:
    """The ETag; of servers without, the time of the last change."""
    return answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""


def _refused(place: StoreSource, answer: Any) -> RemoteError:
    status = answer.status_code
    if status in (401, 403):
        return RemoteError(
            f"{place} may not be read (status {status})", "check the URL, and who may read it"
        )
    if status == 200:
        return RemoteError(
            f"{place}: the server gives no byte ranges", "download the file, and name that"
        )
    return RemoteError(f"{place} cannot be read (status {status})", "check the URL")

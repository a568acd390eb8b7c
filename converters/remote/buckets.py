"""Buckets, and whatever else fsspec knows: gs://, s3://, az://, sftp://, …"""

from __future__ import annotations

import logging
import os
import posixpath
from collections.abc import Callable
from json import JSONDecodeError
from typing import Any, NoReturn, TypeVar

from converters.errors import CheckpointNotFoundError, MissingDependencyError, RemoteError
from converters.installing import how_to_install, is_installed
from converters.remote.ranges import require_length
from converters.remote.retries import TEMPORARY_STATUS, TemporaryError, persistent
from converters.remote.store import StoredFile, FileStore, StoreSource

_Result = TypeVar("_Result")

# protocol → the package that speaks it, and the extra that brings it
EXTRAS = {
    "gs": ("gcsfs", "gcs"),
    "gcs": ("gcsfs", "gcs"),
    "s3": ("s3fs", "s3"),
    "s3a": ("s3fs", "s3"),
    "az": ("adlfs", "azure"),
    "abfs": ("adlfs", "azure"),
    "abfss": ("adlfs", "azure"),
}
_SINGLE_QUESTIONS = 2  # then the whole folder is listed
# Of aiohttp (gcsfs, adlfs) and botocore (s3fs): after as many tries of their own, half a minute.
_NO_CONNECTION = frozenset(
    {"ClientConnectorError", "ClientConnectorDNSError", "EndpointConnectionError"}
)
_TRIES_OF_CLIENTS = 6


class BucketStore(FileStore):
    """The files below a URL that fsspec knows.

    Args:
        protocol: "gs".
        root: the folder, without protocol: "bucket/run".
        shown: what to call it in messages: the URL without secrets.
        url: the URL of the folder as the user gave it.
    """

    def __init__(self, protocol: str, root: str, shown: str, url: str) -> None:
        super().__init__()
        self.protocol = protocol
        self.root = root
        self.url = url
        self.shown = shown
        self._entries: dict[str, StoredFile | None] = {}
        self._listed: dict[str, list[str]] = {}

    def entry(self, key: str) -> StoredFile | None:
        """The file of this key; one or two are asked for, for more their folder is listed."""
        folder = posixpath.dirname(key)
        with self._lock:  # else the shards of an index, asked for together, are as many questions
            if key not in self._entries and folder not in self._listed:
                asked = [other for other in self._entries if posixpath.dirname(other) == folder]
                if len(asked) < _SINGLE_QUESTIONS:
                    self._entries[key] = self._asked(key)
                else:
                    self.names(folder)
            return self._entries.get(key)

    def names(self, folder: str) -> list[str]:
        """The names of the files in a folder."""
        if folder not in self._listed:
            found = self._call(folder, lambda fs, path: listing(fs, path))
            self._listed[folder] = sorted(found)
            for name, entry in found.items():
                self._entries.setdefault(posixpath.join(folder, name), entry)
        return self._listed[folder]

    def fetch(self, key: str, entry: StoredFile, start: int, into: memoryview) -> None:
        """Read the bytes; where the store has generations, of this one."""
        place = StoreSource(self, key)
        more = {"generation": entry.version} if self.protocol in ("gs", "gcs") else {}
        try:
            data: bytes = called(
                place,
                lambda: filesystem(self.protocol, self.url, place).cat_file(
                    posixpath.join(self.root, key), start=start, end=start + len(into), **more
                ),
            )
        except FileNotFoundError:
            raise RemoteError(f"{place} was replaced while it was read", "start again") from None
        require_length(len(data), into)
        into[:] = data

    def require_there(self, place: StoreSource) -> None:
        """Something is at or below a place; else say whether there is a bucket at all."""
        path = posixpath.join(self.root, place.key)
        if self._call(place.key, lambda fs, path: lists(fs, path)):
            return
        bucket = path.partition("/")[0]
        # An empty bucket, too, has a list: asked for only here, as its first level may be long.
        if self.protocol in EXTRAS and not self._call(place.key, lambda fs, _: lists(fs, bucket)):
            raise CheckpointNotFoundError(f"the bucket of {place} does not exist", "check its name")
        raise CheckpointNotFoundError(f"{place} does not exist", "check the name")

    def changed(self) -> list[str]:
        """The keys of files that were read and have another size or version by now."""
        folders = {posixpath.dirname(key) for key in self._used}
        now: dict[str, StoredFile] = {}
        for folder in folders:
            keys = [key for key in self._used if posixpath.dirname(key) == folder]
            if len(keys) <= _SINGLE_QUESTIONS:
                asked = {key: self._asked(key) for key in keys}
                now |= {key: entry for key, entry in asked.items() if entry is not None}
            else:
                found = self._call(folder, lambda fs, path: listing(fs, path))
                now |= {posixpath.join(folder, name): entry for name, entry in found.items()}
        return [key for key, entry in self._used.items() if now.get(key) != entry]

    def _asked(self, key: str) -> StoredFile | None:
        return self._call(key, lambda fs, path: asked_entry(fs, path))

    def _call(self, key: str, action: Callable[[Any, str], _Result]) -> _Result:
        place = StoreSource(self, key)
        path = posixpath.join(self.root, key) if key else self.root

        def once() -> _Result:
            return called(place, lambda: action(filesystem(self.protocol, self.url, place), path))

        return persistent(once, place)


def bucket_source(url: str) -> StoreSource:
    """The place of a URL that fsspec knows: a file, or a folder.

    Raises:
        MissingDependencyError: what speaks its protocol is not installed.
        RemoteError: fsspec does not know it, or the other side refuses.
    """
    protocol, _, rest = url.partition("://")
    shown = f"{protocol}://{rest.partition('?')[0].rpartition('@')[2].rstrip('/')}"
    fs = persistent(lambda: filesystem(protocol, url, shown), shown)  # ftp:// connects at once
    path = fs._strip_protocol(url.rstrip("/"))
    folder, _, name = path.rpartition("/")
    within = BucketStore(protocol, folder, shown.rpartition("/")[0], url)
    if folder and name and not url.endswith("/") and within.entry(name) is not None:
        return StoreSource(within, name)
    return StoreSource(BucketStore(protocol, path, shown, url))


def filesystem(protocol: str, url: str, place: object) -> Any:
    """What fsspec has for a protocol; one for all threads.

    Raises:
        MissingDependencyError: the package is not installed.
        RemoteError: fsspec knows no such protocol, or no credentials are found.
    """
    package, extra = EXTRAS.get(protocol, ("fsspec", "gcs"))
    for needed in ("fsspec", package):
        if not is_installed(needed):
            raise MissingDependencyError(
                f"{place} needs {needed}, which is not installed", how_to_install(extra)
            )
    # Asking what kind of bucket it is goes by gRPC, which an emulator does not answer for a minute.
    if "STORAGE_EMULATOR_HOST" in os.environ:
        os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    import fsspec

    # It logs what it raises too, with URLs; we say it in one line.
    logging.getLogger(package).addHandler(logging.NullHandler())
    logging.getLogger(package).propagate = False
    try:
        cls = fsspec.get_filesystem_class(protocol)
    except ImportError as error:
        raise MissingDependencyError(
            f"{place} needs {getattr(error, 'name', None) or 'another package'}, which is not installed",
            f"install what fsspec needs for {protocol}://",
        ) from None
    except ValueError:
        raise RemoteError(f"{place}: nobody knows {protocol}://", "check the URL") from None
    options = cls._get_kwargs_from_urls(url)
    return called(place, lambda: cls(use_listings_cache=False, **options))


def listing(fs: Any, path: str) -> dict[str, StoredFile]:
    """The files in a folder; none of what is not there."""
    try:
        found = fs.ls(path, detail=True)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    return {
        posixpath.basename(item["name"]): _entry(item)
        for item in found
        if item["type"] == "file" and item["name"].strip("/") != path.strip("/")
    }


def lists(fs: Any, path: str) -> bool:
    """Whether a folder or bucket is there to be listed, be it empty."""
    try:
        fs.ls(path, detail=True)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def asked_entry(fs: Any, path: str) -> StoredFile | None:
    """A file; None where there is none of this name."""
    try:
        info = fs.info(path)
    except FileNotFoundError:
        return None
    return _entry(info) if info["type"] == "file" else None


def _entry(info: Any) -> StoredFile:
    names = ("generation", "ETag", "etag", "VersionId", "mtime", "LastModified", "created")
    version = next((info[name] for name in names if info.get(name) is not None), "")
    return StoredFile(int(info["size"] or 0), str(version))


def called(place: object, action: Callable[[], _Result]) -> _Result:
    """What the action gives; what its client raises, in our words, which hold no secrets.

    Raises:
        FileNotFoundError: as the client says.
        TemporaryError: it may pass.
        RemoteError: it does not.
    """
    try:
        return action()
    except (FileNotFoundError, NotADirectoryError, FileExistsError, TemporaryError, RemoteError):
        raise
    except Exception as error:
        _raise_for(place, error)


def _raise_for(place: object, error: Exception) -> NoReturn:
    status = _status(error)
    kind = type(error).__name__
    credentials = (
        "log in (gcloud auth application-default login; for S3 aws configure; for Azure az login, and "
        "AZURE_STORAGE_ACCOUNT_NAME), or ask for access"
    )
    lacks_account = isinstance(error, ValueError) and "with credentials" in str(error)  # adlfs
    if "Credentials" in kind or kind == "RefreshError" or lacks_account:
        raise RemoteError(f"{place}: no credentials ({kind})", credentials) from None
    if isinstance(error, PermissionError) or status in (401, 403) or _is_forbidden(error):
        raise RemoteError(f"{place}: no permission", credentials) from None
    if status in TEMPORARY_STATUS:
        raise TemporaryError(f"status {status}") from None
    if status == 404:  # what adlfs writes to a container that is not there
        raise FileNotFoundError(str(place)) from None
    if status is not None:
        raise RemoteError(f"{place} is refused (status {status})", "check the URL") from None
    if isinstance(error, JSONDecodeError):
        raise TemporaryError("an answer that is cut off") from None
    if kind in _NO_CONNECTION:
        raise TemporaryError(kind, tries=_TRIES_OF_CLIENTS) from None
    if isinstance(error, OSError | TimeoutError) or "client_exceptions" in type(error).__module__:
        raise TemporaryError(kind) from None
    if isinstance(error, ValueError | TypeError | KeyError):
        raise RemoteError(f"{place} is refused ({kind})", "check the URL") from None
    raise TemporaryError(kind) from None


def _status(error: Exception) -> int | None:
    for name in ("code", "status", "status_code"):
        value = getattr(error, name, None)
        if isinstance(value, int | str) and str(value).isdecimal():
            return int(value)
    return None


def _is_forbidden(error: Exception) -> bool:
    """gcsfs says so in the text of an OSError."""
    return isinstance(error, OSError) and str(error).startswith("Forbidden")

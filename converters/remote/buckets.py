"""Buckets and other sources known to fsspec: gs://, s3://, az://, sftp://, …"""

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
from converters.remote.retries import TEMPORARY_STATUS, TemporaryError, with_retries
from converters.remote.store import FileStore, StoredFile, StoreSource

_Result = TypeVar("_Result")

# protocol → the package that supports it, and the extra that installs it
EXTRAS = {
    "gs": ("gcsfs", "gcs"),
    "gcs": ("gcsfs", "gcs"),
    "s3": ("s3fs", "s3"),
    "s3a": ("s3fs", "s3"),
    "az": ("adlfs", "azure"),
    "abfs": ("adlfs", "azure"),
    "abfss": ("adlfs", "azure"),
}
_SINGLE_QUESTIONS = 2  # afterwards the whole folder is listed
# Number of own retries by aiohttp (gcsfs, adlfs) and botocore (s3fs), half a minute in total.
_NO_CONNECTION = frozenset(
    {"ClientConnectorError", "ClientConnectorDNSError", "EndpointConnectionError"}
)
_TRIES_OF_CLIENTS = 6


class BucketStore(FileStore):
    """Files below a URL known to fsspec.

    Args:
        protocol: the protocol, such as "gs".
        root: the folder without the protocol, such as "bucket/run".
        shown: the name in messages: the URL without secrets.
        url: the URL of the folder as given by the user.
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
        """Return the file of this key. The first few are requested singly; after that their folder is
        listed."""
        folder = posixpath.dirname(key)
        with (
            self._lock
        ):  # otherwise the shards of an index, requested together, would be as many requests
            if key not in self._entries and folder not in self._listed:
                asked = [other for other in self._entries if posixpath.dirname(other) == folder]
                if len(asked) < _SINGLE_QUESTIONS:
                    self._entries[key] = self._asked(key)
                else:
                    self.names(folder)
            return self._entries.get(key)

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder."""
        if folder not in self._listed:
            entries = self._call(folder, lambda fs, path: listing(fs, path))
            self._listed[folder] = sorted(entries)
            for name, entry in entries.items():
                self._entries.setdefault(posixpath.join(folder, name), entry)
        return self._listed[folder]

    def fetch(self, key: str, entry: StoredFile, start: int, into: memoryview) -> None:
        """Read the bytes; if the store has generations, of this generation."""
        source = StoreSource(self, key)
        more = {"generation": entry.version} if self.protocol in ("gs", "gcs") else {}
        try:
            data: bytes = call_client(
                source,
                lambda: filesystem(self.protocol, self.url, source).cat_file(
                    posixpath.join(self.root, key), start=start, end=start + len(into), **more
                ),
            )
        except FileNotFoundError:
            raise RemoteError(f"{source} was replaced while it was read", "start again") from None
        require_length(len(data), into)
        into[:] = data

    def require_there(self, source: StoreSource) -> None:
        """Check that something exists at or below a source; the error distinguishes a missing bucket."""
        path = posixpath.join(self.root, source.key)
        if self._call(source.key, lambda fs, path: can_list(fs, path)):
            return
        bucket = path.partition("/")[0]
        # An empty bucket can be listed too. Only requested here, because its first level may be
        # long.
        if self.protocol in EXTRAS and not self._call(
            source.key, lambda fs, _: can_list(fs, bucket)
        ):
            raise CheckpointNotFoundError(
                f"the bucket of {source} does not exist", "check its name"
            )
        raise CheckpointNotFoundError(f"{source} does not exist", "check the name")

    def changed(self) -> list[str]:
        """Return the keys of files that were read and have another size or version now."""
        folders = {posixpath.dirname(key) for key in self._used}
        now: dict[str, StoredFile] = {}
        for folder in folders:
            keys = [key for key in self._used if posixpath.dirname(key) == folder]
            if len(keys) <= _SINGLE_QUESTIONS:
                asked = {key: self._asked(key) for key in keys}
                now |= {key: entry for key, entry in asked.items() if entry is not None}
            else:
                entries = self._call(folder, lambda fs, path: listing(fs, path))
                now |= {posixpath.join(folder, name): entry for name, entry in entries.items()}
        return [key for key, entry in self._used.items() if now.get(key) != entry]

    def _asked(self, key: str) -> StoredFile | None:
        return self._call(key, lambda fs, path: request_entry(fs, path))

    def _call(self, key: str, action: Callable[[Any, str], _Result]) -> _Result:
        source = StoreSource(self, key)
        path = posixpath.join(self.root, key) if key else self.root

        def once() -> _Result:
            return call_client(
                source, lambda: action(filesystem(self.protocol, self.url, source), path)
            )

        return with_retries(once, source)


def bucket_source(url: str) -> StoreSource:
    """Return the source of a URL known to fsspec: a file or a folder.

    Raises:
        MissingDependencyError: the package for the protocol is not installed.
        RemoteError: fsspec does not know the protocol, or the other side refuses.
    """
    protocol, _, rest = url.partition("://")
    shown = f"{protocol}://{rest.partition('?')[0].rpartition('@')[2].rstrip('/')}"
    fs = with_retries(lambda: filesystem(protocol, url, shown), shown)  # ftp:// connects at once
    path = fs._strip_protocol(url.rstrip("/"))
    folder, _, name = path.rpartition("/")
    within = BucketStore(protocol, folder, shown.rpartition("/")[0], url)
    if folder and name and not url.endswith("/") and within.entry(name) is not None:
        return StoreSource(within, name)
    return StoreSource(BucketStore(protocol, path, shown, url))


def filesystem(protocol: str, url: str, source: object) -> Any:
    """Return fsspec's file system for a protocol; all threads share it.

    Raises:
        MissingDependencyError: the package is not installed.
        RemoteError: fsspec knows no such protocol, or no credentials are found.
    """
    package, extra = EXTRAS.get(protocol, ("fsspec", "gcs"))
    for needed in ("fsspec", package):
        if not is_installed(needed):
            raise MissingDependencyError(
                f"{source} needs {needed}, which is not installed", how_to_install(extra)
            )
    # Detecting the kind of bucket uses gRPC, which an emulator does not answer for a minute.
    if "STORAGE_EMULATOR_HOST" in os.environ:
        os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    import fsspec

    # fsspec also logs what it raises, including URLs; this package reports it in one line.
    logging.getLogger(package).addHandler(logging.NullHandler())
    logging.getLogger(package).propagate = False
    try:
        cls = fsspec.get_filesystem_class(protocol)
    except ImportError as error:
        raise MissingDependencyError(
            f"{source} needs {getattr(error, 'name', None) or 'another package'}, which is not installed",
            f"install what fsspec needs for {protocol}://",
        ) from None
    except ValueError:
        raise RemoteError(f"{source}: unknown protocol {protocol}://", "check the URL") from None
    options = cls._get_kwargs_from_urls(url)
    return call_client(source, lambda: cls(use_listings_cache=False, **options))


def listing(fs: Any, path: str) -> dict[str, StoredFile]:
    """Return the files in a folder; empty if the folder is missing."""
    try:
        infos = fs.ls(path, detail=True)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    return {
        posixpath.basename(item["name"]): _entry(item)
        for item in infos
        if item["type"] == "file" and item["name"].strip("/") != path.strip("/")
    }


def can_list(fs: Any, path: str) -> bool:
    """Whether a folder or bucket can be listed, even if empty."""
    try:
        fs.ls(path, detail=True)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def request_entry(fs: Any, path: str) -> StoredFile | None:
    """Return a file, or None."""
    try:
        info = fs.info(path)
    except FileNotFoundError:
        return None
    return _entry(info) if info["type"] == "file" else None


def _entry(info: Any) -> StoredFile:
    names = ("generation", "ETag", "etag", "VersionId", "mtime", "LastModified", "created")
    version = next((info[name] for name in names if info.get(name) is not None), "")
    return StoredFile(int(info["size"] or 0), str(version))


def call_client(source: object, action: Callable[[], _Result]) -> _Result:
    """Return the result of the action; its client's errors become errors without secrets.

    Raises:
        FileNotFoundError: the file does not exist.
        TemporaryError: the error may be temporary.
        RemoteError: the error is permanent.
    """
    try:
        return action()
    except (FileNotFoundError, NotADirectoryError, FileExistsError, TemporaryError, RemoteError):
        raise
    except Exception as error:
        _raise_for(source, error)


def _raise_for(source: object, error: Exception) -> NoReturn:
    status = _status(error)
    kind = type(error).__name__
    credentials = (
        "log in (gcloud auth application-default login; for S3 aws configure; for Azure az login, and "
        "AZURE_STORAGE_ACCOUNT_NAME), or ask for access"
    )
    lacks_account = isinstance(error, ValueError) and "with credentials" in str(error)  # adlfs
    if "Credentials" in kind or kind == "RefreshError" or lacks_account:
        raise RemoteError(f"{source}: no credentials ({kind})", credentials) from None
    if isinstance(error, PermissionError) or status in (401, 403) or _is_forbidden(error):
        raise RemoteError(f"{source}: no permission", credentials) from None
    if status in TEMPORARY_STATUS:
        raise TemporaryError(f"status {status}") from None
    if status == 404:  # adlfs raises this for a missing container
        raise FileNotFoundError(str(source)) from None
    if status is not None:
        raise RemoteError(f"{source} is refused (status {status})", "check the URL") from None
    if isinstance(error, JSONDecodeError):
        raise TemporaryError("an answer that is cut off") from None
    if kind in _NO_CONNECTION:
        raise TemporaryError(kind, tries=_TRIES_OF_CLIENTS) from None
    if isinstance(error, OSError | TimeoutError) or "client_exceptions" in type(error).__module__:
        raise TemporaryError(kind) from None
    if isinstance(error, ValueError | TypeError | KeyError):
        raise RemoteError(f"{source} is refused ({kind})", "check the URL") from None
    raise TemporaryError(kind) from None


def _status(error: Exception) -> int | None:
    for name in ("code", "status", "status_code"):
        value = getattr(error, name, None)
        if isinstance(value, int | str) and str(value).isdecimal():
            return int(value)
    return None


def _is_forbidden(error: Exception) -> bool:
    """gcsfs reports this in the text of an OSError."""
    return isinstance(error, OSError) and str(error).startswith("Forbidden")

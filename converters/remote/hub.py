"""Repositories of the Hugging Face hub: files from its cache, otherwise byte ranges."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from converters.checkpoint.mapped_file import MappedFile
from converters.checkpoint.source import ByteFile, Source
from converters.errors import (
    CheckpointNotFoundError,
    RemoteError,
    UnreachableError,
)
from converters.installing import missing_error
from converters.remote.ranges import request_range, starts_at, total_of
from converters.remote.retries import TEMPORARY_STATUS, TemporaryError, with_retries
from converters.remote.store import FileStore, StoredFile, StoreSource

_SECONDS = 30.0
_NO_FILE = "EntryNotFound"
_BAD_TOKEN = "Invalid credentials in Authorization header"  # the hub reports this for public repositories too


class HubStore(FileStore):
    """Files of a repository at one commit, which never change.

    Args:
        repository: `org/name`.
        commit: the commit.
        sizes: file → its length in bytes; None if the listing has no sizes, as on some mirrors.
    """

    def __init__(self, repository: str, commit: str, sizes: dict[str, int | None]) -> None:
        super().__init__()
        self._repository = repository
        self._commit = commit
        self._sizes = sizes
        self.shown = f"hf://{repository}@{commit}"

    def entry(self, key: str) -> StoredFile | None:
        """Return the file of this name; its size is requested if the listing has none."""
        if key not in self._sizes:
            return None
        size = self._sizes[key]
        if size is None:
            source = StoreSource(self, key)
            size = self._sizes[key] = with_retries(lambda: self._size(source), source)
        return StoredFile(size, self._commit)

    def _size(self, source: StoreSource) -> int:
        """Return the length of a file, by a HEAD request or a range of one byte."""
        from huggingface_hub import get_hf_file_metadata, hf_hub_url
        from huggingface_hub.utils import build_hf_headers

        url = hf_hub_url(self._repository, source.key, revision=self._commit)
        try:
            size: int | None = get_hf_file_metadata(url, timeout=_SECONDS).size
        except Exception as error:
            _raise_said(error, self._repository, self._commit)
        if size is None:
            size = total_of(request_range(source, url, build_hf_headers(), 0, 1))
        if size is None:
            raise RemoteError(
                f"{source}: the hub does not report its size",
                "download it with `hf download`, and name the folder",
            )
        return size

    def names(self, folder: str) -> list[str]:
        """Return the files in a folder of the repository."""
        return sorted(
            posixpath.basename(name) for name in self._sizes if posixpath.dirname(name) == folder
        )

    def opened(self, source: StoreSource) -> ByteFile:
        """Return the file from the hub's cache if present, otherwise its ranges."""
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(self._repository, source.key, revision=self._commit)
        if isinstance(cached, str) and source.key in self._sizes:
            return MappedFile(Path(cached))
        return super().opened(source)

    def cached(self, source: StoreSource) -> Path:
        """Return the file in the hub's cache, downloading it if necessary.

        Raises:
            RemoteError: the file is unavailable.
        """
        from huggingface_hub import hf_hub_download

        def brought() -> str:
            try:
                return str(hf_hub_download(self._repository, source.key, revision=self._commit))
            except Exception as error:
                _raise_said(error, self._repository, self._commit)

        return Path(with_retries(brought, source))

    def fetch(self, key: str, entry: StoredFile, start: int, into: memoryview) -> None:
        """Read the bytes of the file at this commit."""
        from huggingface_hub import hf_hub_url
        from huggingface_hub.utils import build_hf_headers

        source = StoreSource(self, key)
        url = hf_hub_url(self._repository, key, revision=self._commit)
        answer = request_range(source, url, build_hf_headers(), start, start + len(into), into)
        if answer.status_code >= 400:
            _raise_for(answer, f"{self._repository}", self._commit)
        if answer.status_code != 206 or not starts_at(answer, start):
            raise RemoteError(
                f"{source}: the hub does not serve byte ranges (status {answer.status_code})",
                "download it with `hf download`, and name the folder",
            )


def hub_host() -> str:
    """Return host and port of the hub according to HF_ENDPOINT; "" without its client."""
    try:
        from huggingface_hub import constants
    except ImportError:
        return ""
    return urlsplit(constants.ENDPOINT).netloc


def hub_source(repository: str, revision: str | None, file: str = "") -> tuple[Source, str]:
    """Return the source of a repository or of a file in it, pinned to a commit; and a description of it.

    Args:
        repository: `org/name`.
        revision: a branch, a tag or a commit; None: the main branch.
        file: its path in the repository; "" for the whole repository.

    Raises:
        RemoteError: the repository or revision is missing, private or gated, or the hub is unreachable.
        CheckpointNotFoundError: the file is missing, or the hub is offline and the cache lacks it.
        MissingDependencyError: huggingface_hub is not installed.
    """
    try:
        from huggingface_hub import constants
    except ImportError:
        raise missing_error(
            "huggingface_hub", needed_by=f"{repository} of the Hugging Face hub"
        ) from None
    wanted = revision or "main"
    if constants.HF_HUB_OFFLINE:
        return _cached(repository, wanted, file)
    try:
        info = with_retries(lambda: _info(repository, wanted), f"the hub ({repository})")
    except UnreachableError as error:
        try:
            source, description = _cached(repository, wanted, file)
        except CheckpointNotFoundError:
            raise error from None
        return source, f"{description}; the hub cannot be reached"
    sizes = {item.rfilename: item.size for item in info.siblings or []}
    store = HubStore(repository, str(info.sha), sizes)
    source = StoreSource(store, file)
    if not source.exists():
        raise CheckpointNotFoundError(
            f"{repository} has no file {file} at {wanted} ({str(info.sha)[:12]})", "check the name"
        )
    name = f"{repository}/{file}" if file else repository
    return source, f"{name} of the Hugging Face hub, {wanted} is the commit {info.sha}"


def _cached(repository: str, wanted: str, file: str) -> tuple[Source, str]:
    """Return the newest cached commit of this revision, as a local folder."""
    from huggingface_hub import constants, scan_cache_dir, snapshot_download

    folder: Path | None
    try:
        folder = Path(snapshot_download(repository, revision=wanted, local_files_only=True))
    except Exception as error:
        # Its client has different errors for a partial download and for none; here both are the
        # same.
        folder = _part_of_snapshot(scan_cache_dir, constants.HF_HUB_CACHE, repository, wanted)
        if folder is None:
            raise CheckpointNotFoundError(
                f"{repository} at {wanted} is not in the cache of the Hugging Face hub "
                f"({type(error).__name__})",
                "unset HF_HUB_OFFLINE, or name a local folder",
            ) from None
    source = folder / file if file else folder
    if not source.exists():
        raise CheckpointNotFoundError(
            f"{repository}/{file} at {wanted} is not in the cache of the Hugging Face hub",
            "unset HF_HUB_OFFLINE, or name a local file",
        )
    return source, f"{repository} from the cache of the Hugging Face hub, commit {folder.name}"


def _part_of_snapshot(
    scan: Callable[[], Any], cache: str, repository: str, wanted: str
) -> Path | None:
    """Return the folder of an incomplete snapshot."""
    if not Path(cache).is_dir():
        return None
    for repo in scan().repos:
        if repo.repo_id == repository and repo.repo_type == "model":
            for revision in repo.revisions:
                if wanted in (revision.commit_hash, *revision.refs):
                    return Path(revision.snapshot_path)
    return None


def _info(repository: str, revision: str) -> Any:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError

    try:
        return HfApi().model_info(
            repository, revision=revision, files_metadata=True, timeout=_SECONDS
        )
    except HFValidationError:
        raise RemoteError(
            f"{repository} is not a name of a repository on the Hugging Face hub",
            "write org/name, or check the path",
        ) from None
    except Exception as error:
        _raise_said(error, repository, revision)


def _raise_said(error: Exception, repository: str, revision: str) -> NoReturn:
    """Raise an error of the hub's client as an error of this package."""
    answer = getattr(error, "response", None)
    if answer is not None and answer.status_code not in TEMPORARY_STATUS:
        _raise_for(answer, repository, revision)
    # A ValueError: the answer is not JSON, possibly truncated.
    passing = isinstance(error, OSError | ValueError) or "http" in type(error).__module__
    if answer is not None or passing:
        status = f"status {answer.status_code}" if answer is not None else ""
        raise TemporaryError(status or type(error).__name__) from None
    raise error


def _raise_for(answer: Any, repository: str, revision: str) -> NoReturn:
    """Raise a refusal of the hub in one line; its own text may contain secrets."""
    code = answer.headers.get("X-Error-Code", "")
    status = answer.status_code
    if code == "GatedRepo":
        what, remedy = (
            "is gated: its owner gives access to those who ask",
            f"accept its conditions at huggingface.co/{repository}, then run `hf auth login`",
        )
    elif code == "RevisionNotFound":
        what, remedy = f"has no revision {revision}", "name a branch, a tag or a commit of it"
    elif code == _NO_FILE:
        what, remedy = f"has no such file at {revision}", "check the name"
    elif answer.headers.get("X-Error-Message", "") == _BAD_TOKEN:
        what, remedy = (
            "cannot be read: the hub does not know the token that was sent",
            "run `hf auth login`, or set HF_TOKEN anew; a public repository needs none",
        )
    elif code == "RepoNotFound" or status in (401, 403, 404):
        what, remedy = (
            "is not on the Hugging Face hub, or private",
            "check the name, which is no path here either; for a private one run `hf auth login`",
        )
    else:
        what, remedy = f"cannot be read from the hub (status {status})", "try again later"
    raise RemoteError(f"{repository} {what}", remedy)

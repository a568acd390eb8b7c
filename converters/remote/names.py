"""Resolution of names: a local path, a repository of the hub, or a URL.

./net.pt                          a path; one that exists is never anything else
org/name                          the repository of the hub at its main branch
org/name@v1.0                     at a branch, a tag or a commit
hf://org/name@v1.0/sub/file.bin   a file of it
https://huggingface.co/org/name   the same, as the browser shows it; so do the pages of HF_ENDPOINT
https://host/model.safetensors    a file of any server that gives byte ranges
gs://bucket/folder                a bucket; whatever fsspec knows
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from urllib.parse import unquote, urlsplit

from converters.checkpoint.source import RemoteSource, Source, file_names, is_folder
from converters.errors import CheckpointNotFoundError, RemoteError
from converters.remote.buckets import bucket_source
from converters.remote.hub import hub_host, hub_source
from converters.remote.region import region_warning
from converters.remote.server import server_source

_PART = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_REPOSITORY = re.compile(rf"(?P<repository>{_PART}/{_PART})(?:@(?P<revision>[^@\s]+))?")
_IN_HUB = re.compile(
    rf"(?P<repository>{_PART}/{_PART})(?:@(?P<revision>[^@/\s]+))?(?:/(?P<file>.+))?"
)
# Pages of a repository in a browser.
_PAGE = re.compile(
    rf"/(?P<repository>{_PART}/{_PART})(?:/(?:tree|blob|resolve|raw)/(?P<revision>[^/]+)(?:/(?P<file>.+))?)?/?"
)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_HUB_HOSTS = frozenset({"huggingface.co", "www.huggingface.co", "hf.co"})
# No repository has such a name; a user who has one writes hf://.
_FILE_NAME = re.compile(
    r"\.(safetensors|msgpack|orbax|pt2?|pth|bin|ckpt|npz|json|pkl|pickle|tar|zip|py|yaml)$",
    re.IGNORECASE,
)
_WEIGHTS = re.compile(r"\.(safetensors|pt2?|pth|bin|ckpt|npz|pkl|index\.json)$")
_SHOWN = 5


@dataclass(frozen=True)
class ResolvedName:
    """Resolved name.

    Attributes:
        source: a path, or a remote source.
        description: the interpretation of the name, for the user; "" for a path.
    """

    source: Source
    description: str = ""


def is_url(name: object) -> bool:
    """Whether the name is a URL, of any protocol."""
    return isinstance(name, str) and _URL.match(name) is not None


def without_secrets(name: str) -> str:
    """Return a name in a form that may be printed: a URL without user and query."""
    protocol, separator, rest = name.partition("://")
    if not separator:
        return name
    host, slash, path = rest.partition("?")[0].partition("/")
    host = host if protocol == "hf" else host.rpartition("@")[2]
    return f"{protocol}://{host}{slash}{path}"


def names_a_repository(name: object) -> bool:
    """Whether a name that is no local path can be `org/name` of the hub."""
    return (
        isinstance(name, str)
        and _REPOSITORY.fullmatch(name) is not None
        and not _FILE_NAME.search(name)
        and not os.path.lexists(name)
        and not os.path.isdir(name.partition("/")[0])
    )


def resolve_name(name: Source | ResolvedName | str) -> ResolvedName:
    """Resolve a name; for a remote name the other side is asked.

    Raises:
        RemoteError: the other side refuses, or does not answer.
        CheckpointNotFoundError: the file, the path or the repository does not exist.
        MissingDependencyError: the package for the protocol is not installed.
    """
    if isinstance(name, ResolvedName):
        return name
    if not isinstance(name, str) or os.path.lexists(name):
        return ResolvedName(Path(name) if isinstance(name, str) else name)
    if is_url(name):
        return _resolve_url(name)
    matched = _REPOSITORY.fullmatch(name)
    if matched is not None and names_a_repository(name):
        return ResolvedName(*hub_source(matched["repository"], matched["revision"]))
    if _REPOSITORY.fullmatch(f"org/{name}") and not _FILE_NAME.search(name):
        remedy = (
            f"check the path; of the Hugging Face hub's repository give the owner too, org/{name}"
        )
        raise CheckpointNotFoundError(f"{name} does not exist", remedy)
    if matched is not None and not _FILE_NAME.search(name):
        remedy = f"check the path; the repository of the Hugging Face hub is hf://{name}"
        raise CheckpointNotFoundError(f"{name} does not exist", remedy)
    return ResolvedName(Path(name))


def choose_file(folder: ResolvedName, pattern: str) -> ResolvedName:
    """Return the only file of a folder that matches a pattern: `*fp16*.safetensors`, `unet/*.bin`.

    For shards, the result is their index.

    Raises:
        CheckpointNotFoundError: no file matches, or several files that are not shards of one index.
    """
    path, _, wanted = pattern.rpartition("/")
    source = folder.source
    for name in filter(None, path.split("/")):
        source = source / name
    there = file_names(source) if is_folder(source) else []
    matches = [name for name in there if fnmatch(name, wanted)]
    indexes = [name for name in matches if name.endswith(".index.json")]
    for choice in (matches, indexes):
        if len(choice) == 1:
            file = f"{path}/{choice[0]}" if path else choice[0]
            return ResolvedName(
                source / choice[0],
                f"{folder.description}, its file {file}" if folder.description else "",
            )
    if matches:
        reason = f"several files match {pattern}: {', '.join(matches[:_SHOWN])}"
    else:
        reason = f"no file matches {pattern}" + (f"; it has {_named(there)}" if there else "")
    raise CheckpointNotFoundError(f"{source}: {reason}", "name one with --file")


def _named(files: Sequence[str]) -> str:
    """Return the first files that may hold weights; without any, the first of the others."""
    likely = [name for name in files if _WEIGHTS.search(name)] or files
    more = f" and {len(likely) - _SHOWN} more" if len(likely) > _SHOWN else ""
    return ", ".join(likely[:_SHOWN]) + more


def source_of(name: Source | str) -> Source:
    """Return the source of a name; raises the errors of `resolve_name`."""
    return resolve_name(name).source


def _resolve_url(url: str) -> ResolvedName:
    protocol, _, rest = url.partition("://")
    protocol = protocol.lower()
    if protocol == "file":
        return ResolvedName(Path(unquote(urlsplit(url).path)))
    matched = None
    if protocol == "hf":
        matched = _IN_HUB.fullmatch(rest.rstrip("/"))
        if matched is None:
            raise RemoteError(
                f"{without_secrets(url)[:200]} names no repository", "write hf://org/name/file"
            )
    elif protocol in ("http", "https"):
        parts = urlsplit(url)
        is_page = parts.hostname in _HUB_HOSTS or parts.netloc == hub_host()
        matched = _PAGE.fullmatch(parts.path) if is_page else None
        if matched is None:
            source = server_source(url)
            return ResolvedName(source, f"{source} of a server")
    if matched is not None:
        file = unquote(matched["file"] or "")
        return ResolvedName(*hub_source(matched["repository"], matched["revision"], file))
    bucket = bucket_source(f"{protocol}://{rest}")
    kind = "a file" if bucket.key else "a folder"
    description = f"{bucket}, {kind} of a bucket" if protocol in ("gs", "gcs", "s3") else ""
    return ResolvedName(bucket, "; ".join(filter(None, (description, region_warning(bucket)))))


def require_local(name: str, what: str) -> None:
    """Check that a name is not a URL.

    Raises:
        RemoteError: the name is a URL.
    """
    if is_url(name):
        raise RemoteError(
            f"{what} reads and writes local files only, not URLs", "copy the file to or from there"
        )


def is_remote(source: object) -> bool:
    """Whether a source is remote."""
    return isinstance(source, RemoteSource)

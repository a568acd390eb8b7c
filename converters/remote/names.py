"""What a user means by a name: a path of this machine, a repository of the hub, or a URL.

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
from converters.remote.region import elsewhere
from converters.remote.server import server_source

_PART = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_REPOSITORY = re.compile(rf"(?P<repository>{_PART}/{_PART})(?:@(?P<revision>[^@\s]+))?")
_IN_HUB = re.compile(
    rf"(?P<repository>{_PART}/{_PART})(?:@(?P<revision>[^@/\s]+))?(?:/(?P<file>.+))?"
)
# What a browser shows of a repository.
_PAGE = re.compile(
    rf"/(?P<repository>{_PART}/{_PART})(?:/(?:tree|blob|resolve|raw)/(?P<revision>[^/]+)(?:/(?P<file>.+))?)?/?"
)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_HUB_HOSTS = frozenset({"huggingface.co", "www.huggingface.co", "hf.co"})
# Nobody calls a repository so; who does writes hf://.
_FILE_NAME = re.compile(
    r"\.(safetensors|msgpack|orbax|pt2?|pth|bin|ckpt|npz|json|pkl|pickle|tar|zip|py|yaml)$",
    re.IGNORECASE,
)
_WEIGHTS = re.compile(r"\.(safetensors|pt2?|pth|bin|ckpt|npz|pkl|index\.json)$")
_SHOWN = 5


@dataclass(frozen=True)
class ResolvedName:
    """What a name stands for.

    Attributes:
        place: a path, or a place that is far away.
        said: how it was understood, for the user; "" for a path.
    """

    place: Source
    said: str = ""


def is_url(name: object) -> bool:
    """Whether this is a URL, of any protocol."""
    return isinstance(name, str) and _URL.match(name) is not None


def without_secrets(name: str) -> str:
    """A name as it may be shown: of a URL neither user nor query."""
    protocol, found, rest = name.partition("://")
    if not found:
        return name
    host, slash, path = rest.partition("?")[0].partition("/")
    host = host if protocol == "hf" else host.rpartition("@")[2]
    return f"{protocol}://{host}{slash}{path}"


def names_a_repository(name: object) -> bool:
    """Whether a name that is no path here reads as `org/name` of the hub."""
    return (
        isinstance(name, str)
        and _REPOSITORY.fullmatch(name) is not None
        and not _FILE_NAME.search(name)
        and not os.path.lexists(name)
        and not os.path.isdir(name.partition("/")[0])
    )


def meant(name: Source | ResolvedName | str) -> ResolvedName:
    """What a name stands for; for one that is far away the other side is asked.

    Raises:
        RemoteError: the other side refuses, or does not answer.
        CheckpointNotFoundError: a repository has no such file; no path, and no name of a repository.
        MissingDependencyError: a package is lacking that speaks the protocol.
    """
    if isinstance(name, ResolvedName):
        return name
    if not isinstance(name, str) or os.path.lexists(name):
        return ResolvedName(Path(name) if isinstance(name, str) else name)
    if is_url(name):
        return _meant_by_url(name)
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


def chosen(folder: ResolvedName, pattern: str) -> ResolvedName:
    """The one file of a folder that a pattern names: `*fp16*.safetensors`, `unet/*.bin`.

    Of shards their index is the one.

    Raises:
        CheckpointNotFoundError: no file matches, or several that are no shards of one index.
    """
    path, _, wanted = pattern.rpartition("/")
    place = folder.place
    for name in filter(None, path.split("/")):
        place = place / name
    there = file_names(place) if is_folder(place) else []
    found = [name for name in there if fnmatch(name, wanted)]
    indexes = [name for name in found if name.endswith(".index.json")]
    for choice in (found, indexes):
        if len(choice) == 1:
            file = f"{path}/{choice[0]}" if path else choice[0]
            return ResolvedName(
                place / choice[0], f"{folder.said}, its file {file}" if folder.said else ""
            )
    if found:
        reason = f"several files match {pattern}: {', '.join(found[:_SHOWN])}"
    else:
        reason = f"no file matches {pattern}" + (f"; it has {_named(there)}" if there else "")
    raise CheckpointNotFoundError(f"{place}: {reason}", "name one with --file")


def _named(files: Sequence[str]) -> str:
    """The first of those that may hold weights; of the others where none does."""
    likely = [name for name in files if _WEIGHTS.search(name)] or files
    more = f" and {len(likely) - _SHOWN} more" if len(likely) > _SHOWN else ""
    return ", ".join(likely[:_SHOWN]) + more


def source_of(name: Source | str) -> Source:
    """The place that a name stands for; raises what `meant` raises."""
    return meant(name).place


def _meant_by_url(url: str) -> ResolvedName:
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
            place = server_source(url)
            return ResolvedName(place, f"{place} of a server")
    if matched is not None:
        file = unquote(matched["file"] or "")
        return ResolvedName(*hub_source(matched["repository"], matched["revision"], file))
    bucket = bucket_source(f"{protocol}://{rest}")
    kind = "a file" if bucket.key else "a folder"
    said = f"{bucket}, {kind} of a bucket" if protocol in ("gs", "gcs", "s3") else ""
    return ResolvedName(bucket, "; ".join(filter(None, (said, elsewhere(bucket)))))


def require_local(name: str, what: str) -> None:
    """A name that is no URL.

    Raises:
        RemoteError: it is one.
    """
    if is_url(name):
        raise RemoteError(
            f"{what} reads and writes local files only, not URLs", "copy the file to or from there"
        )


def is_far(place: object) -> bool:
    """Whether a place is on no disk of this machine."""
    return isinstance(place, RemoteSource)

"""Local copies of remote sources, for code that reads files only, such as transformers."""

from __future__ import annotations

from pathlib import Path

from converters.checkpoint.source import RemoteSource
from converters.errors import CheckpointNotFoundError, OutputError
from converters.remote.hub import HubStore
from converters.remote.names import is_url, names_a_repository, resolve_name
from converters.remote.store import StoreSource

_AT_ONCE = 64 << 20  # bytes
_ALWAYS = (".json", ".txt", ".model")
# The first form in a folder is copied; the others contain the same data.
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".npz", ".distcp")


def is_remote_name(name: str) -> bool:
    """Whether a name without a local path is that of a hub or a URL."""
    return is_url(name) or names_a_repository(name)


def local_copy(name: str, folder: Path, *, model: bool = False) -> Path:
    """Return a local file or folder for a name.

    A hub's files are downloaded to the hub's own cache, those of a bucket or a server to `folder`.

    Args:
        name: the name as a user writes it (`converters.remote.names`).
        folder: the folder for copies, created if missing.
        model: whether the name must be a model that can be built: a folder, not weights alone.

    Raises:
        ConversionError: the source is unavailable; the subclass gives the reason.
    """
    source = resolve_name(name).source
    if not isinstance(source, StoreSource):
        assert isinstance(source, Path)
        return source
    if model and source.is_file():
        raise CheckpointNotFoundError(
            f"{source} is a file, and no model",
            "name the folder with its config.json, or a model with this file as --weights",
        )
    wanted = [source] if source.is_file() else [source / file for file in _wanted(source.names())]
    if not wanted:
        source.require_there()
        raise CheckpointNotFoundError(
            f"{source} holds no model", "name a folder with a config.json"
        )
    if isinstance(source.store, HubStore):
        copies = [source.store.cached(file) for file in wanted]
    else:
        copies = [_copied(file, folder / source.name) for file in wanted]
    return copies[0] if source.is_file() else copies[0].parent


def _wanted(names: list[str]) -> list[str]:
    form = next((form for form in _WEIGHTS if any(name.endswith(form) for name in names)), "")
    return [
        name
        for name in names
        if name.endswith(_ALWAYS) or (form and name.endswith((form, ".metadata")))
    ]


def _copied(source: RemoteSource, folder: Path) -> Path:
    file = source.open()
    target = folder / source.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        pending = target.with_name(f".{target.name}.partial")
        with pending.open("wb") as out:
            for start in range(0, file.size, _AT_ONCE):
                out.write(file.copy(start, min(start + _AT_ONCE, file.size)))
        pending.replace(target)
    except OSError as error:
        raise OutputError(
            f"{target} cannot be written ({error.strerror or error})", "free some space"
        ) from None
    return target

"""A copy on this machine of what is far away, for what reads files only: transformers, to run a model."""

from __future__ import annotations

from pathlib import Path

from converters.checkpoint.source import RemoteSource
from converters.errors import CheckpointNotFoundError, OutputError
from converters.remote.hub import HubStore
from converters.remote.names import is_url, meant, names_a_repository
from converters.remote.store import StoreSource

_AT_ONCE = 64 << 20  # bytes
_ALWAYS = (".json", ".txt", ".model")
# The first form that a folder has is copied, the others hold the same.
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".npz", ".distcp")


def is_elsewhere(name: str) -> bool:
    """Whether a name, which no path here has, is one of a hub or a URL."""
    return is_url(name) or names_a_repository(name)


def near(name: str, folder: Path, *, model: bool = False) -> Path:
    """The file or folder that a name stands for, on this machine.

    What the hub has comes into the hub's own cache; what a bucket or a server has into `folder`.

    Args:
        name: as users write it (`converters.remote.names`).
        folder: where copies go; made if it is not there.
        model: it has to be one that can be built: a folder, not weights alone.

    Raises:
        ConversionError: it cannot be had; the subclass says why.
    """
    place = meant(name).place
    if not isinstance(place, StoreSource):
        assert isinstance(place, Path)
        return place
    if model and place.is_file():
        raise CheckpointNotFoundError(
            f"{place} is a file, and no model",
            "name its folder, with a config.json; or a model, and this as its --weights",
        )
    wanted = [place] if place.is_file() else [place / file for file in _wanted(place.names())]
    if not wanted:
        place.require_there()
        raise CheckpointNotFoundError(f"{place} holds no model", "name a folder with a config.json")
    if isinstance(place.store, HubStore):
        copies = [place.store.cached(file) for file in wanted]
    else:
        copies = [_copied(file, folder / place.name) for file in wanted]
    return copies[0] if place.is_file() else copies[0].parent


def _wanted(names: list[str]) -> list[str]:
    form = next((form for form in _WEIGHTS if any(name.endswith(form) for name in names)), "")
    return [
        name
        for name in names
        if name.endswith(_ALWAYS) or (form and name.endswith((form, ".metadata")))
    ]


def _copied(place: RemoteSource, folder: Path) -> Path:
    file = place.open()
    target = folder / place.name
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

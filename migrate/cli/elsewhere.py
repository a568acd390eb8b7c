"""Models and checkpoints of a hub, a server or a bucket, copied here for commands that run them."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

_KIND = re.compile(r"(?P<kind>(?:torch|xla):)?(?P<name>.+)")


class Nearby:
    """Local copies of the models and checkpoints that users name.

    Args:
        folder: target of copies that are not the hub's.
        progress: receiver of the progress of each copy.
    """

    def __init__(self, folder: Path, progress: Callable[[str], None]) -> None:
        self._folder = folder
        self._progress = progress

    def target(self, text: str) -> str:
        """Return a side as users name it, with a model of a hub or a bucket replaced by its local folder."""
        from converters.remote.near import is_remote_name

        matched = _KIND.fullmatch(text)
        if matched is None or not is_remote_name(matched["name"]):
            return text
        return f"{matched['kind'] or ''}{self._copy(matched['name'], model=True)}"

    def file(self, name: str | Path | None) -> Path | None:
        """Return the local path of a checkpoint as users name it."""
        from converters.remote.near import is_remote_name

        if name is None or not isinstance(name, str) or not is_remote_name(name):
            return None if name is None else Path(name)
        return self._copy(name)

    def _copy(self, name: str, *, model: bool = False) -> Path:
        from converters.remote.names import without_secrets
        from converters.remote.near import local_copy

        self._progress(f"downloading {without_secrets(name)}")
        return local_copy(name, self._folder, model=model)


@contextlib.contextmanager
def nearby(progress: Callable[[str], None]) -> Iterator[Nearby]:
    """Local copies that are deleted afterwards."""
    with tempfile.TemporaryDirectory(prefix="migrate-near-") as folder:
        yield Nearby(Path(folder), progress)

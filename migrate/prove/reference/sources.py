"""Files of a project that a script runs, and their digests, to recognize the recorded script."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from shims._started.script import local_files


def digests(script: Path) -> dict[str, str]:
    """Return the digests of a script and of its imports from its own folder, by path from there."""
    folder = script.resolve().parent
    return {
        path.relative_to(folder).as_posix(): _digest(path)
        for path in local_files(script)
        if path.is_relative_to(folder)
    }


def changed(recorded: Mapping[str, str], name: str, script: Path) -> list[str]:
    """Return the files that changed since they were recorded, the script first.

    Args:
        recorded: the digests.
        name: recorded name of the script; it may have been renamed.
        script: the script now.
    """
    now = digests(script)
    then = {script.name if known == name else known: digest for known, digest in recorded.items()}
    other = [known for known, digest in then.items() if now.get(known) != digest]
    return sorted(other, key=lambda known: (known != script.name, known))


def _digest(path: Path) -> str:
    # A checkout on another system may end its lines differently.
    return hashlib.sha256(path.read_bytes().replace(b"\r\n", b"\n")).hexdigest()

"""A script in a folder of its own that runs as if it lay in another one's place.

A rewritten script must not be written beside the user's for a run: the folder may be read-only, and what
is killed removes nothing. So it lies elsewhere, and here it is arranged that `__file__` and the imports are
those of the script that it stands for, in its process and in those that multiprocessing starts.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from typing import Any

# The script that runs, and the path that it is to have.
SCRIPT = "SHIMS_STAND_IN"
STANDS_FOR = "SHIMS_STANDS_FOR"

_MARK = ".stands-for"


def mark(script: Path, stands_for: Path) -> None:
    """Say beside `script`, in a folder of its own, which script it stands for."""
    script.with_name(_MARK).write_text(os.path.abspath(stands_for))


def stands_for(script: Path) -> Path | None:
    """The script that this one stands for; None for one that runs where it lies."""
    mark = script.with_name(_MARK)
    return Path(mark.read_text()) if mark.is_file() else None


def environment(script: Path) -> dict[str, str]:
    """The variables with which the processes of `script` take the place of the one that it stands for."""
    there = stands_for(script)
    return {} if there is None else {SCRIPT: os.path.abspath(script), STANDS_FOR: str(there)}


def switch_on() -> None:
    """Take the place that the environment names, if it names one; before the script begins."""
    script, there = os.environ.get(SCRIPT), os.environ.get(STANDS_FOR)
    if not script or not there:
        return
    if os.path.abspath(sys.argv[0]) == script:
        # Python sets it where it is not set.
        sys.modules["__main__"].__file__ = there
        # In front of it comes the script's own folder, with nothing to import, unless Python was told -P.
        sys.path.insert(0, os.path.dirname(there))
    _read_in_place_of(there, script)


def _read_in_place_of(there: str, script: str) -> None:
    """Let runpy, by which spawned processes read the main script again, find the one that stands there."""
    read: Any = runpy._get_code_from_file  # type: ignore[attr-defined]

    def _get_code_from_file(*args: str) -> Any:
        *before, path = (
            args  # before Python 3.12: the name of the module, and the path is returned too
        )
        if os.path.abspath(path) != there:
            return read(*args)
        found = read(*before, script)
        return (found[0], path) if isinstance(found, tuple) else found

    runpy._get_code_from_file = _get_code_from_file  # type: ignore[attr-defined]

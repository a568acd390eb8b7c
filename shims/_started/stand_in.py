"""A script in a folder of its own, with the modules it imports, that runs as if it lay elsewhere.

A rewritten script must not be written beside the user's for a run: the folder may be read-only, and what
is killed removes nothing. So it lies elsewhere, and here it is arranged that `__file__` and the imports are
those of the script that it stands for, in its process and in those that multiprocessing starts. Modules have
stand-ins too: whoever imports the original of one gets the stand-in, with the `__file__` of the original.
"""

from __future__ import annotations

import importlib.machinery
import json
import os
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# The script that runs, and the path that it is to have.
SCRIPT = "SHIMS_STAND_IN"
STANDS_FOR = "SHIMS_STANDS_FOR"
# The list of the modules that have a stand-in.
MODULES = "SHIMS_STAND_INS"
# The folder below which a mirror of the user's folders lies, if the script runs in one.
MIRROR = "SHIMS_MIRROR"

_MARK, _MODULES = ".stands-for", ".stand-ins.json"


def mark(script: Path, stands_for: Path, files: Mapping[Path, Path] | None = None) -> None:
    """Note beside `script`, in a folder of its own, what it and other files stand for.

    Args:
        script: the script.
        stands_for: its original.
        files: the stand-in of each other file, by the path of the original.
    """
    script.with_name(_MARK).write_text(os.path.abspath(stands_for))
    known = {os.path.realpath(path): str(file) for path, file in (files or {}).items()}
    script.with_name(_MODULES).write_text(json.dumps(known))


def files(script: Path) -> dict[Path, Path]:
    """The stand-ins of the files that `script` has beside itself, by the path of the original."""
    known = script.with_name(_MODULES)
    if not known.is_file():
        return {}
    return {Path(path): Path(file) for path, file in json.loads(known.read_text()).items()}


def stands_for(script: Path) -> Path | None:
    """The script that this one stands for; None for one that runs where it lies."""
    mark = script.with_name(_MARK)
    return Path(mark.read_text()) if mark.is_file() else None


def environment(script: Path) -> dict[str, str]:
    """The variables with which the processes of `script` take the place of the one that it stands for."""
    there = stands_for(script)
    if there is None:
        return {}
    known = os.path.abspath(script.with_name(_MODULES))
    return {SCRIPT: os.path.abspath(script), STANDS_FOR: str(there), MODULES: known}


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
    with open(os.environ[MODULES]) as file:
        _import_in_place_of(json.load(file))


def _import_in_place_of(modules: dict[str, str]) -> None:
    """Let the loader of source files run the stand-in of a module where it has one."""
    if not modules:
        return
    loader: Any = importlib.machinery.SourceFileLoader
    read, mirror = loader.get_code, os.environ.get(MIRROR, "")

    def get_code(self: Any, name: str) -> Any:
        original = os.path.realpath(os.path.abspath(self.path).removeprefix(mirror))
        file = modules.get(original)
        if file is None or not file.endswith(".py"):
            return read(self, name)
        with open(file, "rb") as source:
            return compile(source.read(), file, "exec", dont_inherit=True)

    loader.get_code = get_code


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

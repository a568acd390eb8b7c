"""Execution of a rewritten script, with its modules, as if it were at the original's path.

A rewritten script must not be written beside the user's script: the folder may be read-only, and a
killed process cleans up nothing. The copy therefore lies in another folder. This module makes
`__file__` and the imports those of the original, in its process and in processes started by
multiprocessing. Modules have stand-ins too: an import of the original returns the stand-in, with
the original's `__file__`.
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

# Path of the script that runs, and the path that it must appear to have.
SCRIPT = "SHIMS_STAND_IN"
STANDS_FOR = "SHIMS_STANDS_FOR"
# List of the modules that have a stand-in.
MODULES = "SHIMS_STAND_INS"
# Root folder of a mirror of the user's folders, if the script runs in one.
MIRROR = "SHIMS_MIRROR"

_MARK, _MODULES = ".stands-for", ".stand-ins.json"


def mark(script: Path, stands_for: Path, files: Mapping[Path, Path] | None = None) -> None:
    """Record beside `script` which originals the script and other files stand for.

    Args:
        script: the script.
        stands_for: its original.
        files: the stand-ins of the other files, by original path.
    """
    script.with_name(_MARK).write_text(os.path.abspath(stands_for))
    known = {os.path.realpath(path): str(file) for path, file in (files or {}).items()}
    script.with_name(_MODULES).write_text(json.dumps(known))


def files(script: Path) -> dict[Path, Path]:
    """Return the stand-ins recorded beside `script`, by original path."""
    known = script.with_name(_MODULES)
    if not known.is_file():
        return {}
    return {Path(path): Path(file) for path, file in json.loads(known.read_text()).items()}


def stands_for(script: Path) -> Path | None:
    """Return the original of `script`, or None if the script is not a stand-in."""
    mark = script.with_name(_MARK)
    return Path(mark.read_text()) if mark.is_file() else None


def environment(script: Path) -> dict[str, str]:
    """Return the environment variables with which processes of `script` act as the original."""
    there = stands_for(script)
    if there is None:
        return {}
    known = os.path.abspath(script.with_name(_MODULES))
    return {SCRIPT: os.path.abspath(script), STANDS_FOR: str(there), MODULES: known}


def switch_on() -> None:
    """Act as the original that the environment names, if any, before the script begins."""
    script, there = os.environ.get(SCRIPT), os.environ.get(STANDS_FOR)
    if not script or not there:
        return
    if os.path.abspath(sys.argv[0]) == script:
        # Python sets it only if it is not set.
        sys.modules["__main__"].__file__ = there
        # The script's own folder comes first unless Python runs with -P; nothing is imported from
        # there.
        sys.path.insert(0, os.path.dirname(there))
    _read_in_place_of(there, script)
    with open(os.environ[MODULES]) as file:
        _import_in_place_of(json.load(file))


def _import_in_place_of(modules: dict[str, str]) -> None:
    """Make the loader of source files run a module's stand-in, if there is one."""
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
    """Make runpy run the stand-in: spawned processes use it to read the main script again."""
    read: Any = runpy._get_code_from_file  # type: ignore[attr-defined]

    def _get_code_from_file(*args: str) -> Any:
        *before, path = (
            args  # before Python 3.12: takes the module's name, and also returns the path
        )
        if os.path.abspath(path) != there:
            return read(*args)
        loaded = read(*before, script)
        return (loaded[0], path) if isinstance(loaded, tuple) else loaded

    runpy._get_code_from_file = _get_code_from_file  # type: ignore[attr-defined]

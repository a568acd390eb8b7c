"""Separation of a user's module from a package of this toolkit with the same name.

The script's project may have a `shims.py`, or a package `converters` or `migrate`. Python keeps one
module per name, so the first import would serve everyone. The user's module is therefore loaded
under another name. `import shims` returns it in the user's code, and the toolkit's package in the
toolkit's code.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from shims._started import stand_in

# Environment variable with the script's folder, for the processes that it starts.
FOLDER = "SHIMS_SCRIPT_FOLDER"
# Packages of the toolkit.
NAMES = ("shims", "converters", "migrate")
ALIAS = "_of_the_script_"
# Folder that contains the toolkit's packages.
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def switch_on() -> None:
    """Separate the user's modules from the toolkit's packages of the same name."""
    folder = os.environ.get(FOLDER) or _script_folder()
    if not folder or os.path.realpath(folder) == os.path.realpath(ROOT):
        return
    shared = [name for name in NAMES if _spec(name, name, folder) is not None]
    if not shared:
        return
    os.environ[FOLDER] = folder
    for name in shared:  # while the script's folder is not on the path
        _import_ours(name)
    sys.meta_path.insert(0, _Finder(folder, shared))
    builtins.__import__ = _Import(shared, builtins.__import__)


def _script_folder() -> str:
    """Return the folder of the script that this process runs, or ""."""
    there = os.environ.get(stand_in.STANDS_FOR)
    if there:
        return os.path.dirname(there)
    script = getattr(sys, "argv", [""])[0]
    return os.path.dirname(os.path.abspath(script)) if os.path.isfile(script) else ""


def _import_ours(name: str) -> None:
    if name in sys.modules:
        return
    before = list(sys.path)
    sys.path.insert(0, ROOT)
    try:
        importlib.import_module(name)
    except ImportError:
        pass  # not installed with the other packages
    finally:
        sys.path[:] = before


def _spec(name: str, shown: str, folder: str) -> importlib.machinery.ModuleSpec | None:
    """Return the spec of the module `name` in `folder`, to be loaded under the name `shown`."""
    package = os.path.join(folder, name, "__init__.py")
    if os.path.isfile(package):
        if os.path.realpath(os.path.dirname(package)) == os.path.realpath(os.path.join(ROOT, name)):
            return None
        inside = [os.path.dirname(package)]
        return importlib.util.spec_from_file_location(
            shown, package, submodule_search_locations=inside
        )
    module = os.path.join(folder, f"{name}.py")
    return importlib.util.spec_from_file_location(shown, module) if os.path.isfile(module) else None


class _Finder(importlib.abc.MetaPathFinder):
    """Import finder that finds the user's modules under their internal names."""

    def __init__(self, folder: str, names: Sequence[str]) -> None:
        self._folder = folder
        self._names = {ALIAS + name: name for name in names}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        name = self._names.get(fullname)
        return None if name is None else _spec(name, fullname, self._folder)


class _Import:
    """Replacement for the `import` statement that gives the user's module to the user's code."""

    def __init__(self, names: Sequence[str], before: Any) -> None:
        self._names = frozenset(names)
        self._before = before

    def __call__(self, name: str, *args: Any, **named: Any) -> Any:
        arguments = (
            dict(zip(("globals", "locals", "fromlist", "level"), args, strict=False)) | named
        )
        root = name.partition(".")[0]
        shared = root in self._names and not arguments.get("level")
        if shared and _is_users(arguments.get("globals")):
            name = ALIAS + name
        return self._before(name, *args, **named)


def _is_users(caller: Mapping[str, Any] | None) -> bool:
    """Whether an import is in the user's code, not in this toolkit, Python or installed packages.

    Pickle imports through the same function on behalf of its caller.
    """
    file = (caller or {}).get("__file__")
    return bool(file) and not os.path.abspath(file or "").startswith(_OTHERS)


_OTHERS = tuple(
    path + os.sep
    for path in (
        *(os.path.join(ROOT, name) for name in NAMES),
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    )
)

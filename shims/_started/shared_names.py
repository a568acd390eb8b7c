"""A user's module that bears the name of one of this toolkit's packages: each side imports its own.

The project of a script may have a `shims.py`, or a package `converters` or `migrate`. Python keeps one
module for each name, and the first one imported would be everybody's. So the user's module is loaded under
another name: `import shims` in the user's code returns it, and in the toolkit's code the toolkit's package.
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

# The folder of the script, for the processes that it starts.
FOLDER = "SHIMS_SCRIPT_FOLDER"
# The toolkit's packages.
NAMES = ("shims", "converters", "migrate")
ALIAS = "_of_the_script_"
# The folder that holds the toolkit's packages.
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def switch_on() -> None:
    """Keep the user's modules and the toolkit's apart, where a name belongs to both."""
    folder = os.environ.get(FOLDER) or _script_folder()
    if not folder or os.path.realpath(folder) == os.path.realpath(ROOT):
        return
    shared = [name for name in NAMES if _spec(name, name, folder) is not None]
    if not shared:
        return
    os.environ[FOLDER] = folder
    for name in shared:  # while the folder of the script is not on the path
        _import_ours(name)
    sys.meta_path.insert(0, _Finder(folder, shared))
    builtins.__import__ = _Import(shared, builtins.__import__)


def _script_folder() -> str:
    """Return the folder of the script that this process runs, or "" where it runs none."""
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
        pass  # not installed with the others
    finally:
        sys.path[:] = before


def _spec(name: str, shown: str, folder: str) -> importlib.machinery.ModuleSpec | None:
    """Return where the module `name` lies in `folder`, to be loaded under the name `shown`."""
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
    """Finds the user's modules under the names that they have here."""

    def __init__(self, folder: str, names: Sequence[str]) -> None:
        self._folder = folder
        self._names = {ALIAS + name: name for name in names}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        name = self._names.get(fullname)
        return None if name is None else _spec(name, fullname, self._folder)


class _Import:
    """The `import` statement, which gives the user's module to the user's code."""

    def __init__(self, names: Sequence[str], before: Any) -> None:
        self._names = frozenset(names)
        self._before = before

    def __call__(self, name: str, *args: Any, **named: Any) -> Any:
        given = dict(zip(("globals", "locals", "fromlist", "level"), args, strict=False)) | named
        root = name.partition(".")[0]
        shared = root in self._names and not given.get("level")
        if shared and _is_users(given.get("globals")):
            name = ALIAS + name
        return self._before(name, *args, **named)


def _is_users(caller: Mapping[str, Any] | None) -> bool:
    """Whether an import stands in the user's code: not in this toolkit, in Python or in what is installed.

    Pickle imports what it names by the same function, for its caller.
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

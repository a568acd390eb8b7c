"""Source files that belong to the model: their functions are functions of the port, those of other
files are not.

`einops.rearrange` is a dozen functions around a reshape and a transpose. A port of transformers'
Llama has transformers' `rotate_half`.
"""

from __future__ import annotations

import inspect
import sys
import sysconfig
from collections.abc import Callable
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import torch

# The packages of this toolkit. An installation for development finds them by a hook, so their folder is not
# in `sys.path`; a script in the toolkit's own folder runs in a copy of it, and imports some from there.
_TOOLKIT = ("converters", "migrate", "shims")


def own_files(root: torch.nn.Module) -> Callable[[str], bool]:
    """Whether a file belongs to the model: the user's, or of an installed package with one of its
    classes.

    Classes of modules without weights do not count: they are written as their operators (einops'
    Rearrange).
    """
    packages = {
        _package(_file(type(module)))
        for module in root.modules()
        if any(True for _ in module.parameters()) or any(True for _ in module.buffers())
    }

    @cache
    def own(file: str) -> bool:
        package = _package(file)
        return not package or package in packages

    return own


def is_user_file(file: str) -> bool:
    """Whether a file is the user's own: of no installed package and not Python's."""
    return bool(file) and not _package(file)


def _file(cls: type) -> str:
    try:
        return inspect.getsourcefile(cls) or ""
    except (OSError, TypeError):
        return ""


def _package(file: str) -> str:
    """The installed package of a file; "python" for the standard library, "" for the user's files."""
    paths = (*sys.path, *_toolkit_folders())
    places = [place for place in paths if place and Path(file).is_relative_to(place)]
    if not places:
        return ""
    place = max(places, key=len)
    if Path(place) == Path(sysconfig.get_path("stdlib")):
        return "python"
    name = Path(file).relative_to(place).parts[0].removesuffix(".py")
    return name if name in _installed() else ""


def _toolkit_folders() -> list[str]:
    """Folders from which this process has imported the toolkit."""
    files = [getattr(sys.modules.get(name), "__file__", None) for name in _TOOLKIT]
    return [str(Path(file).parents[1]) for file in files if file]


@cache
def _installed() -> frozenset[str]:
    return frozenset(packages_distributions())

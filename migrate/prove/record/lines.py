"""Find the line of the user's code that a call comes from."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from pathlib import Path

import torch

import migrate
import shims
from shims._started import stand_in

# Code below these folders belongs to a library: its caller is searched further out.
_LIBRARIES = tuple(
    os.path.join(os.path.realpath(folder), "")
    for folder in {
        *(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib")),
        *(str(Path(str(package.__file__)).parent) for package in (torch, migrate, shims)),
    }
)


def users_line() -> str | None:
    """Return the innermost running line outside of libraries, as "file:line"; None if there is none.

    The file is relative to the folder of the script, if it is below that.
    """
    frame = sys._getframe(1)
    while frame is not None:
        if name := _shown(frame.f_code.co_filename):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return None


@functools.cache
def _shown(file: str) -> str | None:
    """Shown path of a file; None for a file of a library, or no file."""
    path = os.path.realpath(file)
    if file.startswith("<") or path.startswith(_LIBRARIES):
        return None
    # A script that stands for another script has its modules beside the other.
    stand_ins = os.environ.get(stand_in.MODULES)
    for script in filter(None, (sys.argv[0], os.environ.get(stand_in.STANDS_FOR), stand_ins)):
        path = path.removeprefix(os.path.join(os.path.dirname(os.path.realpath(script)), ""))
    return path

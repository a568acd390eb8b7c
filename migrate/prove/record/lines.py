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

# Code below these folders is a library's: what called it is looked for further out.
_LIBRARIES = tuple(
    os.path.join(os.path.realpath(folder), "")
    for folder in {
        *(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib")),
        *(str(Path(str(package.__file__)).parent) for package in (torch, migrate, shims)),
    }
)


def users_line() -> str | None:
    """The innermost running line outside of libraries, as "file:line"; None if there is none.

    The file is told relative to the folder of the script, if it is below it.
    """
    frame = sys._getframe(1)
    while frame is not None:
        if name := _shown(frame.f_code.co_filename):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return None


@functools.cache
def _shown(file: str) -> str | None:
    """The file as it is told; None for one of a library, or one that is none."""
    path = os.path.realpath(file)
    if file.startswith("<") or path.startswith(_LIBRARIES):
        return None
    # A script that stands for another one has its modules beside that.
    stand_ins = os.environ.get(stand_in.MODULES)
    for script in filter(None, (sys.argv[0], os.environ.get(stand_in.STANDS_FOR), stand_ins)):
        path = path.removeprefix(os.path.join(os.path.dirname(os.path.realpath(script)), ""))
    return path

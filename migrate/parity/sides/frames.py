"""Source locations as `file.py:line`, relative to the working folder for files below it."""

from __future__ import annotations

import functools
import inspect
import linecache
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any

# Frames of these packages are never shown to the user as the caller of a layer.
SKIPPED = (
    *("torch", "torch_xla", "torch_tpu", "flax", "jax", "jaxlib"),
    *("migrate", "contextlib", "functools"),
)
# Runs of the model begin in this package: frames above it do not belong to the model.
_RUN = "migrate.parity.sides"
# These frames are below that, between a layer and its caller.
_WATCHING = ("migrate.parity.sides.torch.capture.", "migrate.parity.sides.jax.capture.")


def defined(what: Callable[..., Any] | type) -> str:
    """Location of a function, method or class: the line of its `def` or `class`.

    Decorated functions are followed to the inner function as far as `functools.wraps` allows. "" if there is
    no Python source.
    """
    if isinstance(what, type):
        try:
            return _place(inspect.getsourcefile(what) or "", inspect.findsource(what)[1] + 1)
        except (OSError, TypeError):
            return ""
    what = inspect.unwrap(what)
    while isinstance(what, functools.partial):
        what = inspect.unwrap(what.func)
    code = getattr(getattr(what, "__func__", what), "__code__", None)
    return _place(code.co_filename, _line_of_def(code)) if isinstance(code, CodeType) else ""


def caller(skipped: tuple[str, ...] = SKIPPED) -> str:
    """Line of the nearest caller of the running code outside the skipped packages.

    "" where the model itself was called, that is where a frame of `migrate.parity.sides` comes first.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith(_RUN) and not name.startswith(_WATCHING):
            return ""
        if not _skipped(name, frame.f_code.co_filename, skipped):
            return _place(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return ""


def raised(traceback: TracebackType | None, skipped: tuple[str, ...] = SKIPPED) -> str:
    """Innermost line of the user's own code in a traceback; "" if there is none."""
    location = ""
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not _skipped(
            traceback.tb_frame.f_globals.get("__name__", ""), code.co_filename, skipped
        ):
            location = _place(code.co_filename, traceback.tb_lineno)
        traceback = traceback.tb_next
    return location


def placed(traceback: Any) -> str:
    """Innermost line of the user's own code in the traceback of a JAX equation; "" if there is none."""
    packages = [
        f"{Path(file).parent}{os.sep}"
        for name in SKIPPED
        if (file := getattr(sys.modules.get(name), "__file__", None))
        and Path(file).stem == "__init__"
    ]
    for frame in traceback.frames if traceback is not None else ():
        file = frame.file_name
        if not file.startswith(("<", *packages)) and Path(file).stem not in SKIPPED:
            return _place(file, frame.line_num)
    return ""


def _skipped(module: str, file: str, skipped: tuple[str, ...]) -> bool:
    return module.split(".")[0] in skipped or file.startswith("<")


def _line_of_def(code: CodeType) -> int:
    """Line of `def`; `co_firstlineno` is the line of the first decorator."""
    line = code.co_firstlineno
    for ahead in range(line, line + 50):
        text = linecache.getline(code.co_filename, ahead)
        if re.match(r"\s*(async\s+)?def\s", text) or "lambda" in text:
            return ahead
    return line


def shown(file: Path) -> str:
    """Path as it is shown in locations."""
    return _shown(str(file), os.getcwd())


def _place(file: str, line: int) -> str:
    return f"{name}:{line}" if (name := _shown(file, os.getcwd())) else ""


@functools.cache
def _shown(file: str, below: str) -> str:
    """Path of a file, relative to a folder if it is below it."""
    if not file or file.startswith("<"):
        return ""
    path = Path(below, file)
    return str(path.relative_to(below) if path.is_relative_to(below) else path)

"""Frames of the script on the stack."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

# Names of code that Python runs in a frame of its own for one expression.
COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")


@dataclass(frozen=True)
class Frame:
    """Position of one frame of the script.

    Attributes:
        line: the line that it is at.
        function: name of its code: "<module>" for the script itself.
        first: first line of its code, decorators included.
        arguments: its arguments that are numbers, strings or None, as JSON has them.
        end: end of the expression that runs the script's frame inside of it: lines below `line`, and column
            in bytes; None if other code is between the two.
        loss: the loss as the frame hands it to a function that calls `backward`; "" if it does so itself.
    """

    line: int
    function: str
    first: int
    arguments: tuple[tuple[str, Any], ...] = field(default=(), compare=False)
    end: tuple[int, int] | None = field(default=None, compare=False)
    loss: str = field(default="", compare=False)


# Functions that get the loss and call `backward`, by name and first line: a part of the statement that calls
# them.
_HANDED: set[tuple[str, int]] = set()


def leave_out(functions: Iterable[tuple[str, int]]) -> None:
    """Leave functions out of the frames of this process: they get the loss, and call its backward."""
    _HANDED.update(functions)


def script_frames(file: str) -> tuple[list[Frame], FrameType | None, str]:
    """Return the frames of a file on the stack, innermost first.

    Args:
        file: the script.

    Returns:
        The frames, the innermost of them as it is, and the file of a frame between the caller and the script
        that is neither torch's nor ours ("" if the script itself made the call).
    """
    frame: FrameType | None = sys._getframe(1)
    frames: list[Frame] = []
    innermost: FrameType | None = None
    between = ""
    inner: FrameType | None = None
    while frame is not None:
        code = frame.f_code
        if code.co_filename == file and code.co_name in COMPREHENSIONS:
            pass  # a part of a statement of the frame around it
        elif code.co_filename == file and not frames and _is_handed(code):
            pass
        elif code.co_filename == file:
            innermost = innermost or frame
            direct = inner is not None and inner.f_code.co_filename == file
            end = _end(frame) if direct else None
            at = frame.f_lineno, code.co_name, code.co_firstlineno, _plain_arguments(frame)
            frames.append(Frame(*at, end))
        elif innermost is None and not _is_machinery(frame):
            between = between or code.co_filename
        inner, frame = frame, frame.f_back
    return frames, innermost, between


def _is_handed(code: CodeType) -> bool:
    return (code.co_name, code.co_firstlineno) in _HANDED


def _plain_arguments(frame: FrameType) -> tuple[tuple[str, Any], ...]:
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount]
    values = ((name, frame.f_locals.get(name, ...)) for name in names)
    return tuple((n, v) for n, v in values if v is None or type(v) in (bool, int, float, str))


def _end(frame: FrameType) -> tuple[int, int] | None:
    """End of the expression that a frame runs: lines below its own, and column."""
    position = next(itertools.islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), None)
    start, line, _, column = position or (None, None, None, None)
    return None if start is None or line is None or column is None else (line - start, column)


def _is_machinery(frame: FrameType) -> bool:
    name = str(frame.f_globals.get("__name__", ""))
    return name.partition(".")[0] in ("torch", "migrate", "shims", "contextlib", "functools")

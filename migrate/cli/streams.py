"""Standard streams of a command: when nobody reads stdout or stderr any more, the command ends quietly.

`migrate rewrite train.py --diff | head -3` closes the pipe after three lines. The command then stops as for
Ctrl-C, which ends what it started and removes temporary files, and exits as a program that SIGPIPE ended.
"""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class ReaderGoneError(BaseException):
    """Nobody reads stdout or stderr any more.

    Not an OSError: code that handles errors of files must not take it for one of theirs.
    """


class _Raw(io.FileIO):
    """A standard stream of the process that raises `ReaderGoneError` where the pipe is closed."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            # What is still buffered goes nowhere, or Python would fail once more at its end.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            raise ReaderGoneError from None


def guard_streams() -> None:
    """Have stdout and stderr of this process end the command quietly where nobody reads them."""
    _open_closed_ones()
    sys.stdout = _guarded(sys.stdout, 1)
    sys.stderr = _guarded(sys.stderr, 2)


def _open_closed_ones() -> None:
    """Open what the shell has closed (`>&-`), or the next file that is opened would be stdout."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)


def _guarded(stream: TextIO | None, number: int) -> TextIO:
    raw = _Raw(number, "wb", closefd=False)
    if stream is None:
        return io.TextIOWrapper(io.BufferedWriter(raw), "utf-8", "backslashreplace")
    if not isinstance(stream, io.TextIOWrapper) or stream.fileno() != number:
        return stream  # replaced by whoever calls this in a program of their own
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        stream.encoding,
        stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )

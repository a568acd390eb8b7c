"""Output of gloo when processes connect: left out, so that a script's output is the script's alone."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

_STDOUT = 1
# Beginning of gloo's own lines: "[Gloo] Rank 0 is connected to 1 peer ranks."
_OWN = b"[Gloo]"


@functools.cache
def keep_off_stdout() -> None:
    """Leave out the lines about connections that each gloo group of this process prints."""
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_gloo_available():
        return
    # The connections are made, and printed by C++, in the constructor of the group.
    begin = dist.ProcessGroupGloo.__init__

    @functools.wraps(begin)
    def beginning(group: Any, *args: Any, **kwargs: Any) -> None:
        with _without_gloo_lines():
            begin(group, *args, **kwargs)

    dist.ProcessGroupGloo.__init__ = beginning


@contextlib.contextmanager
def _without_gloo_lines() -> Iterator[None]:
    """Hold the stdout of this process back, C++ included, and print it afterwards without gloo's lines."""
    try:
        kept = os.dup(_STDOUT)
    except OSError:  # closed by the shell
        yield
        return
    with tempfile.TemporaryFile() as held:
        try:
            with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or none at all
                sys.stdout.flush()
                _flush_c()
                os.dup2(held.fileno(), _STDOUT)
            yield
        finally:
            _flush_c()
            os.dup2(kept, _STDOUT)
            os.close(kept)
            held.seek(0)
            others = [line for line in held if not line.startswith(_OWN)]
            with contextlib.suppress(OSError):  # nobody reads it any more
                _write(b"".join(others))


def _write(text: bytes) -> None:
    """Write to stdout below Python's buffer, which was flushed before."""
    while text:
        text = text[os.write(_STDOUT, text) :]


def _flush_c() -> None:
    ctypes.CDLL(None).fflush(None)

"""Output of gloo when processes connect: sent to stderr, so that stdout is the script's alone."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
from collections.abc import Iterator
from typing import Any

_STDOUT, _STDERR = 1, 2


@functools.cache
def keep_off_stdout() -> None:
    """Let each gloo group that this process makes print its connections to stderr."""
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_gloo_available():
        return
    # The connections are made, and printed by C++, in the constructor of the group.
    begin = dist.ProcessGroupGloo.__init__

    @functools.wraps(begin)
    def beginning(group: Any, *args: Any, **kwargs: Any) -> None:
        with _stdout_on_stderr():
            begin(group, *args, **kwargs)

    dist.ProcessGroupGloo.__init__ = beginning


@contextlib.contextmanager
def _stdout_on_stderr() -> Iterator[None]:
    """Send the stdout of this process, C++ included, to its stderr."""
    try:
        kept = os.dup(_STDOUT)
    except OSError:  # closed by the shell
        yield
        return
    try:
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or none at all
            sys.stdout.flush()
            _flush_c()
            os.dup2(_STDERR, _STDOUT)
        yield
    finally:
        _flush_c()
        os.dup2(kept, _STDOUT)
        os.close(kept)


def _flush_c() -> None:
    ctypes.CDLL(None).fflush(None)

"""Find the line of the user's code that led to an execution, and its cause."""

from __future__ import annotations

import itertools
import os
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from enum import StrEnum
from functools import cache
from pathlib import Path
from types import FrameType

import converters
import migrate
import shims
from migrate.observe.graph_dump import DumpFrame


class ExecutionCause(StrEnum):
    """Cause of a graph's execution."""

    SYNC = "sync"  # the end of a torch_xla.step, torch_xla.sync, a batch of MpDeviceLoader
    READ = "read"  # a value that Python needs: .item(), print, if, .cpu(), an op without lowering
    COMPILED = "torch.compile"
    RENDEZVOUS = "rendezvous"  # of torch_xla: its graphs hold the length of each replica's payload
    WRAPPING = (
        "wrapping"  # DistributedDataParallel(…): the replicas compare and share the weights, once
    )
    SIMULATION = "simulated collective"  # a cut that only the simulation makes


_OURS = tuple(str(Path(package.__file__ or "").parent) for package in (shims, migrate, converters))
_LIBRARIES = tuple(
    sorted(
        {os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")}
    )
)
_SIMULATION = str(Path(shims.__file__ or "").parent / "_simulated" / "replica.py")
_RENDEZVOUS = {("rendezvous", "xla_model.py"), ("xla_rendezvous", "xla_model.py")}
_WRAPPER = os.path.join("torch", "nn", "parallel", "distributed.py")
_SYNCS = {("sync", "torch_xla.py"), ("mark_step", "xla_model.py")}


@cache
def is_the_users(file: str) -> bool:
    """Whether `file` is neither of a library, nor of Python, nor of this program."""
    if file.startswith("<"):  # <string>, <frozen runpy>
        return False
    real = os.path.realpath(file)
    return not real.startswith((*_LIBRARIES, *_OURS)) and "site-packages" not in real


def users_frame(frames: Sequence[DumpFrame]) -> DumpFrame | None:
    """Return the innermost of `frames`, given innermost first, that is the user's; None if none is."""
    return next((frame for frame in frames if is_the_users(frame.file)), None)


def cause_of(frames: Sequence[DumpFrame]) -> ExecutionCause:
    """Return why the execution with these frames, innermost first, happened."""
    above = list(itertools.takewhile(lambda frame: not is_the_users(frame.file), frames))
    if any((frame.function, os.path.basename(frame.file)) in _RENDEZVOUS for frame in above):
        return ExecutionCause.RENDEZVOUS
    if any(frame.file == _SIMULATION for frame in frames):
        return ExecutionCause.SIMULATION
    if any(frame.function == "__init__" and frame.file.endswith(_WRAPPER) for frame in above):
        return ExecutionCause.WRAPPING
    for frame in above:
        if "/torch_xla/_dynamo/" in frame.file or "/torch/_dynamo/" in frame.file:
            return ExecutionCause.COMPILED
        if (frame.function, os.path.basename(frame.file)) in _SYNCS:
            return ExecutionCause.SYNC
    return ExecutionCause.READ


def current_line() -> DumpFrame | None:
    """Return the innermost line of the user's that is running in this thread; None if none is."""
    for running in _running():
        code = running.f_code
        if is_the_users(code.co_filename):
            return DumpFrame(code.co_name, code.co_filename, running.f_lineno)
    return None


def ends_no_step() -> bool:
    """Whether the sync that is running in this thread is the one before a block, or a rendezvous' own.

    `torch_xla.step()` synchronizes before its block too: what was pending belongs to the step. A
    rendezvous synchronizes up to three times.
    """
    for running in _running():
        code = running.f_code
        if is_the_users(code.co_filename):
            return False
        place = (code.co_name, os.path.basename(code.co_filename))
        if place == ("__enter__", "contextlib.py") or place in _RENDEZVOUS:
            return True
    return False


def _running() -> Iterator[FrameType]:
    """Yield the frames that are running in this thread, innermost first."""
    above: FrameType | None = sys._getframe(1)
    while above is not None:
        yield above
        above = above.f_back

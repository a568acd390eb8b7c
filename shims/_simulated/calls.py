"""The collective that a replica is in: its name in the program, its line and its step."""

from __future__ import annotations

import os
import sys
import threading
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import zip_longest
from types import FrameType

import torch

# Libraries, not the program: torch and its launchers, the standard library, this toolkit.
_LIBRARIES = frozenset({"torch", "torch_xla", "shims", "migrate"}) | (
    frozenset(sys.stdlib_module_names) - {"__main__"}
)
# Modules with the functions that programs call for a collective. Some consist of others: XLA
# broadcasts by an all_reduce, and a rendezvous is several collectives.
_PUBLIC_MODULES = frozenset({"torch_xla.core.xla_model", "torch.distributed.distributed_c10d"})
_TAGGED = frozenset({"rendezvous", "xla_rendezvous", "mesh_reduce"})
_DDP = frozenset({"shims._simulated.reducer", "torch.nn.parallel.distributed"})

# Longer lists of tensors and longer locations are shortened.
_LONGEST = 200


@dataclass(frozen=True)
class Call:
    """Collective that a replica is in.

    Attributes:
        wire: the call as it must be equal on all replicas: `all_reduce(sum) of float32[4]`.
        name: the call as written in the program: `rendezvous('save')`.
        location: `train.py:31`, the innermost line of the program, or "".
        step: the number of steps that have ended.
    """

    wire: str
    name: str
    location: str
    step: int

    def by_wire(self) -> Call:
        """Return the same call under its XLA name."""
        return replace(self, name=self.wire)

    def __str__(self) -> str:
        return f"{self.name}{at(self.location)} (step {self.step})"


def describe(operation: str, tensors: Sequence[torch.Tensor], groups: Sequence[object]) -> str:
    """Return the text that must be equal on all replicas: operation, shapes, dtypes and groups."""
    shapes = ", ".join(
        f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}" for tensor in tensors
    )
    what = f"{operation} of {shapes}" + (f" in groups {groups}" if groups else "")
    if len(what) > _LONGEST:
        # For many tensors, their number and a checksum of the full text replace the list.
        what = f"{operation} of {len(tensors)} tensors ({checksum(what):08x})"
    return what


def current(wire: str, step: int) -> Call:
    """Return the call that this thread is in.

    Args:
        wire: from `describe`.
        step: the number of steps that have ended.
    """
    name = wire
    for frame in _running(sys._getframe(1)):
        if is_the_programs(frame):
            return Call(wire, name, location_of(frame), step)
        name = _public_name(frame, wire) or name
    return Call(wire, name, _waiting_location(), step)


def caller() -> str:
    """Return the innermost `file:line` of the program, or "" if no program code is running."""
    for frame in _running(sys._getframe(1)):
        if is_the_programs(frame):
            return location_of(frame)
    return _waiting_location()


def at(location: str) -> str:
    """Return the suffix that adds a location to a sentence."""
    return f" at {location}" if location else " in a backward pass"


def first_difference(reads: str, other: str) -> tuple[str, str]:
    """Return the first read of each of two replicas that the other replica does not have; "" for none.

    Args:
        reads: the reads of a replica in words, as `Reads.since` returns them.
        other: the reads of another replica.
    """
    notes = [[line.partition(" ") for line in text.splitlines()] for text in (reads, other)]
    for mine, its in zip_longest(*notes, fillvalue=("", "", "")):
        if mine[0] != its[0]:
            return mine[2], its[2]
    return "", ""


def checksum(text: str) -> int:
    """Return a checksum that is equal for equal texts in every process."""
    return zlib.crc32(text.encode())


def is_the_programs(frame: FrameType) -> bool:
    """Whether the frame runs the program's code, not a library's."""
    if frame.f_code.co_filename.startswith("<"):  # <string>, by which multiprocessing starts
        return False
    return frame.f_globals.get("__name__", "").partition(".")[0] not in _LIBRARIES


def location_of(frame: FrameType) -> str:
    """Return `file:line` of the frame, relative to the working directory if the file is below it."""
    return f"{_shown(frame.f_code.co_filename)}:{frame.f_lineno}"[-_LONGEST:]


def threads_of_the_program() -> Iterator[tuple[int, FrameType]]:
    """Yield every other thread that runs program code, with its innermost frame. Worker threads come first.

    Do not keep the frames: they keep their functions' values alive. A tensor that lives longer on
    one replica becomes an extra output of the next graph there.
    """
    main = threading.main_thread().ident
    frames = sys._current_frames()
    # Skip this thread: `frames` would hold this function's own frame, and through it all others,
    # until Python's cycle collection.
    del frames[threading.get_ident()]
    for thread in sorted(frames, key=lambda ident: ident == main):
        innermost = frames[thread]
        if any(is_the_programs(frame) for frame in _running(innermost)):
            yield thread, innermost


def in_a_recorder() -> bool:
    """Whether a `migrate` recorder, not the program, is reading the tensors."""
    for frame in _running(sys._getframe(1)):
        module = frame.f_globals.get("__name__", "").partition(".")[0]
        if module == "migrate" or is_the_programs(frame):
            return module == "migrate"
    return False


def ends_a_step() -> bool:
    """Whether the sync that this thread is in ends a step.

    `torch_xla.step()` also synchronizes before its block, and a rendezvous up to three times.
    """
    for frame in _running(sys._getframe(1)):
        if is_the_programs(frame):
            return True
        function, module = frame.f_code.co_name, frame.f_globals.get("__name__", "")
        if (function, module) == ("__enter__", "contextlib") or function in _TAGGED:
            return False
    return True


def _running(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _public_name(frame: FrameType, wire: str) -> str:
    """Return the public function that the program called, if this library frame is one; else ""."""
    module = frame.f_globals.get("__name__", "")
    if module in _DDP:
        return f"DistributedDataParallel ({wire})"
    function = frame.f_code.co_name
    if module not in _PUBLIC_MODULES or function.startswith("_") or wire.startswith(function):
        return ""
    if function in _TAGGED:
        return f"{function}({frame.f_locals.get('tag')!r})"
    return f"{function} ({wire})"


def _waiting_location() -> str:
    """Return where another thread waits for this one: a backward pass runs in separate threads."""
    for _, innermost in threads_of_the_program():
        for frame in _running(innermost):
            if is_the_programs(frame):
                return location_of(frame)
    return ""


@cache
def _shown(file: str) -> str:
    relative = os.path.relpath(file) if os.path.isabs(file) else file
    return file if relative.startswith(os.pardir) else relative

"""What a replica is in: the collective, as the program calls it, its line and the step."""

from __future__ import annotations

import os
import sys
import threading
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import FrameType

import torch

# Not the program's own: torch and what runs it, Python's library, this program.
_LIBRARIES = frozenset({"torch", "torch_xla", "shims", "migrate"}) | (
    frozenset(sys.stdlib_module_names) - {"__main__"}
)
# Where the functions that programs call for a collective are. Some consist of others: a broadcast is an
# all_reduce for XLA, a rendezvous several.
_SPOKEN = frozenset({"torch_xla.core.xla_model", "torch.distributed.distributed_c10d"})
_TAGGED = frozenset({"rendezvous", "xla_rendezvous", "mesh_reduce"})
_DDP = frozenset({"shims._simulated.reducer", "torch.nn.parallel.distributed"})

# A list of tensors, or a place, longer than this is cut short.
_LONGEST = 200


@dataclass(frozen=True)
class Call:
    """A collective that a replica is in.

    Attributes:
        wire: what all replicas must be in alike: `all_reduce(sum) of float32[4]`.
        name: the same as the program says it: `rendezvous('save')`.
        place: `train.py:31`, the innermost line of the program; "" where none of it is running.
        step: how many syncs ended a step before.
    """

    wire: str
    name: str
    place: str
    step: int

    def by_wire(self) -> Call:
        """The same, called as XLA sees it."""
        return replace(self, name=self.wire)

    def __str__(self) -> str:
        return f"{self.name}{at(self.place)} (step {self.step})"


def describe(operation: str, tensors: Sequence[torch.Tensor], groups: Sequence[object]) -> str:
    """What all replicas must agree in: the operation, shapes and dtypes, groups."""
    shapes = ", ".join(
        f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}" for tensor in tensors
    )
    what = f"{operation} of {shapes}" + (f" in groups {groups}" if groups else "")
    if len(what) > _LONGEST:
        # Many tensors: their number and a checksum of the whole text stand for the list.
        what = f"{operation} of {len(tensors)} tensors ({checksum(what):08x})"
    return what


def current(wire: str, step: int) -> Call:
    """The call that this thread is in.

    Args:
        wire: from `describe`.
        step: the number of steps before.
    """
    name = wire
    for frame in _running(sys._getframe(1)):
        if is_the_programs(frame):
            return Call(wire, name, place_of(frame), step)
        name = _spoken(frame, wire) or name
    return Call(wire, name, _elsewhere(), step)


def caller() -> str:
    """The innermost `file:line` of the program; "" where none of it is running."""
    for frame in _running(sys._getframe(1)):
        if is_the_programs(frame):
            return place_of(frame)
    return _elsewhere()


def at(place: str) -> str:
    """How a sentence goes on with the place."""
    return f" at {place}" if place else " in a backward pass"


def checksum(text: str) -> int:
    """Equal for equal texts, in every process."""
    return zlib.crc32(text.encode())


def is_the_programs(frame: FrameType) -> bool:
    """Whether the frame runs code of the program, not of a library that runs it."""
    if frame.f_code.co_filename.startswith("<"):  # <string>, with which multiprocessing starts
        return False
    return frame.f_globals.get("__name__", "").partition(".")[0] not in _LIBRARIES


def place_of(frame: FrameType) -> str:
    """`file:line` of the frame, the file relative to the working directory if it is below it."""
    return f"{_shown(frame.f_code.co_filename)}:{frame.f_lineno}"[-_LONGEST:]


def threads_of_the_program() -> Iterator[tuple[int, FrameType]]:
    """Each other thread that runs code of the program, with its innermost frame; workers before the main one.

    Keep none of the frames: they keep the values of their functions, and a tensor that lives longer on one
    replica than on the others becomes an output of the next graph there.
    """
    main = threading.main_thread().ident
    frames = sys._current_frames()
    # This thread's is the one of this function: it would hold itself by `frames`, and all others with it,
    # until Python looks for cycles.
    del frames[threading.get_ident()]
    for thread in sorted(frames, key=lambda ident: ident == main):
        innermost = frames[thread]
        if any(is_the_programs(frame) for frame in _running(innermost)):
            yield thread, innermost


def in_a_recorder() -> bool:
    """Whether the program's tensors are being looked at by `migrate`, not by the program."""
    for frame in _running(sys._getframe(1)):
        module = frame.f_globals.get("__name__", "").partition(".")[0]
        if module == "migrate" or is_the_programs(frame):
            return module == "migrate"
    return False


def ends_a_step() -> bool:
    """Whether the sync that this thread is in ends a step.

    `torch_xla.step()` synchronises before its block too, and a rendezvous up to three times.
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


def _spoken(frame: FrameType, wire: str) -> str:
    """What the program calls, if it is in this frame of a library; else ""."""
    module = frame.f_globals.get("__name__", "")
    if module in _DDP:
        return f"DistributedDataParallel ({wire})"
    function = frame.f_code.co_name
    if module not in _SPOKEN or function.startswith("_") or wire.startswith(function):
        return ""
    if function in _TAGGED:
        return f"{function}({frame.f_locals.get('tag')!r})"
    return f"{function} ({wire})"


def _elsewhere() -> str:
    """The place where another thread waits for this one: a backward pass runs in threads of its own."""
    for _, innermost in threads_of_the_program():
        for frame in _running(innermost):
            if is_the_programs(frame):
                return place_of(frame)
    return ""


@cache
def _shown(file: str) -> str:
    relative = os.path.relpath(file) if os.path.isabs(file) else file
    return file if relative.startswith(os.pardir) else relative

"""Patches of `torch.cuda.Event` and `torch.cuda.Stream`: work runs in the order of the calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch

from shims.errors import DeviceNotAnsweredError
from shims.patches import calls
from shims.patches.devices import Devices
from shims.patches.registry import Patch, patch

_CURRENT = threading.local()


class Event:
    """Point in time at which the earlier work was done.

    Args:
        enable_timing: whether `elapsed_time` is allowed, as in torch.
        blocking: ignored.
        interprocess: ignored.
    """

    # Set by `patches`: waits until the device has finished earlier work.
    _finish: Callable[[], None] = staticmethod(lambda: None)

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> None:
        self._timed = enable_timing
        self._time: float | None = None
        if calls.enabled():
            calls.saw("torch.cuda.Event", "time.perf_counter")

    def record(self, stream: Any = None) -> None:
        """Record the time after the earlier work."""
        if self._timed:
            self._finish()
        self._time = time.perf_counter()

    def elapsed_time(self, end_event: Event) -> float:
        """Return the milliseconds from this event to the other.

        Raises:
            RuntimeError: an event was not recorded, or was created without timing, as on a GPU.
        """
        if not (self._timed and end_event._timed):
            raise RuntimeError("Both events must be created with argument 'enable_timing=True'.")
        if self._time is None or end_event._time is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        return (end_event._time - self._time) * 1e3

    def query(self) -> bool:
        """Whether the earlier work is done: always."""
        return True

    def wait(self, stream: Any = None) -> None:
        """Do nothing: later work runs later anyway."""

    def synchronize(self) -> None:
        """Wait for the earlier work."""
        self._finish()


class Stream:
    """Queue of work; all streams of one process are a single queue here.

    Args:
        device: the reported device.
        priority: ignored.
    """

    _devices: Devices
    _finish: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
        self.priority = priority
        self.device = torch.device("cuda", self._devices.index(device) or 0)
        self._before: list[Any] = []
        if calls.enabled():
            calls.saw("torch.cuda.Stream", "work runs in the order of the calls")

    def wait_event(self, event: Event) -> None:
        """Do nothing: later work runs later anyway."""

    def wait_stream(self, stream: Stream) -> None:
        """Do nothing: later work runs later anyway."""

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event; without an argument, a new one."""
        event = event or torch.cuda.Event()
        event.record(self)
        return event

    def query(self) -> bool:
        """Whether all work is done: always."""
        return True

    def is_capturing(self) -> bool:
        """Whether a CUDA graph is being captured: never."""
        return False

    def synchronize(self) -> None:
        """Wait for all work."""
        self._finish()

    def __enter__(self) -> Stream:
        self._before.append(current_stream(self.device))
        _CURRENT.stream = self
        return self

    def __exit__(self, *exc_info: object) -> None:
        _CURRENT.stream = self._before.pop()

    def __getattr__(self, name: str) -> Any:
        if name == "cuda_stream":
            raise DeviceNotAnsweredError(
                f"torch.cuda.Stream.cuda_stream at {calls.user_line()}: there is no CUDA stream",
                "code that hands streams to CUDA libraries needs a GPU",
                "cuda-streams",
            )
        raise AttributeError(name)


class StreamContext:
    """`torch.cuda.stream(s)`: context that makes a stream the current one; None does nothing."""

    def __init__(self, stream: Stream | None) -> None:
        self._stream = stream

    def __enter__(self) -> None:
        if self._stream is not None:
            self._stream.__enter__()

    def __exit__(self, *exc_info: object) -> None:
        if self._stream is not None:
            self._stream.__exit__()


def current_stream(device: Any = None) -> Any:
    """Return the stream of the innermost `torch.cuda.stream`, otherwise the default stream."""
    stream = getattr(_CURRENT, "stream", None)
    if stream is None:
        stream = _CURRENT.stream = torch.cuda.Stream(device)
        _CURRENT.default = stream
    return stream


def default_stream(device: Any = None) -> Any:
    """Return the stream of work that names no stream."""
    if getattr(_CURRENT, "default", None) is None:
        _CURRENT.default = torch.cuda.Stream(device)
    return _CURRENT.default


def set_stream(stream: Any) -> None:
    """Make a stream the current one."""
    if stream is not None:
        _CURRENT.stream = stream


def patches(devices: Devices, finish: Callable[[], None]) -> Iterator[Patch]:
    """Yield the patches of events and streams, and of the functions that return them.

    Args:
        devices: the CUDA devices reported to the program.
        finish: waits until the device has finished earlier work.
    """
    event = type("Event", (Event,), {"_finish": staticmethod(finish)})
    stream = type("Stream", (Stream,), {"_finish": staticmethod(finish), "_devices": devices})
    modules: tuple[ModuleType, ...] = (torch.cuda, torch.cuda.streams)
    for module in modules:
        yield patch(module, "Event", event, "time.perf_counter, after a synchronization")
        yield patch(module, "Stream", stream, "work runs in the order of the calls")
    yield patch(torch.cuda, "StreamContext", StreamContext, "work runs in the order of the calls")
    for name, function in (
        ("stream", lambda stream: StreamContext(stream)),
        ("current_stream", current_stream),
        ("default_stream", default_stream),
        ("set_stream", set_stream),
    ):
        yield patch(torch.cuda, name, function, "work runs in the order of the calls")
    # Its arguments are checked before any mode is called.
    yield patch(
        torch.Tensor, "record_stream", lambda tensor, stream: None, "memory is not reused early"
    )

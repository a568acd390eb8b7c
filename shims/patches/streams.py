"""`torch.cuda.Event` and `torch.cuda.Stream`: work is done in the order of the calls."""

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
    """A point in time: when the work before it was done.

    Args:
        enable_timing: whether `elapsed_time` may be asked, as in torch.
        blocking: without a meaning here.
        interprocess: without a meaning here.
    """

    # Set by `patches`: waits until the device has done what was called before.
    _finish: Callable[[], None] = staticmethod(lambda: None)

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> None:
        self._timed = enable_timing
        self._time: float | None = None
        if calls.enabled():
            calls.saw("torch.cuda.Event", "time.perf_counter")

    def record(self, stream: Any = None) -> None:
        """Note the time, after the work before it."""
        if self._timed:
            self._finish()
        self._time = time.perf_counter()

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds from this event to the other.

        Raises:
            RuntimeError: one of them was not recorded, or not made for timing; as on a GPU.
        """
        if not (self._timed and end_event._timed):
            raise RuntimeError("Both events must be created with argument 'enable_timing=True'.")
        if self._time is None or end_event._time is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        return (end_event._time - self._time) * 1e3

    def query(self) -> bool:
        """Whether the work before it is done: always."""
        return True

    def wait(self, stream: Any = None) -> None:
        """Later work comes later anyway."""

    def synchronize(self) -> None:
        """Wait for the work before it."""
        self._finish()


class Stream:
    """A queue of work: all streams of one process are one queue here.

    Args:
        device: which device it is said to be on.
        priority: without a meaning here.
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
        """Later work comes later anyway."""

    def wait_stream(self, stream: Stream) -> None:
        """Later work comes later anyway."""

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event, a new one if none is given."""
        event = event or torch.cuda.Event()
        event.record(self)
        return event

    def query(self) -> bool:
        """Whether all work is done: always."""
        return True

    def is_capturing(self) -> bool:
        """Whether a CUDA graph is being captured: there are none."""
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
    """`torch.cuda.stream(s)`: makes a stream the current one for a while; None does nothing."""

    def __init__(self, stream: Stream | None) -> None:
        self._stream = stream

    def __enter__(self) -> None:
        if self._stream is not None:
            self._stream.__enter__()

    def __exit__(self, *exc_info: object) -> None:
        if self._stream is not None:
            self._stream.__exit__()


def current_stream(device: Any = None) -> Any:
    """The stream of the innermost `torch.cuda.stream`, otherwise the default one."""
    stream = getattr(_CURRENT, "stream", None)
    if stream is None:
        stream = _CURRENT.stream = torch.cuda.Stream(device)
        _CURRENT.default = stream
    return stream


def default_stream(device: Any = None) -> Any:
    """The stream of work that names none."""
    if getattr(_CURRENT, "default", None) is None:
        _CURRENT.default = torch.cuda.Stream(device)
    return _CURRENT.default


def set_stream(stream: Any) -> None:
    """Make a stream the current one."""
    if stream is not None:
        _CURRENT.stream = stream


def patches(devices: Devices, finish: Callable[[], None]) -> Iterator[Patch]:
    """Events, streams, and who asks for them.

    Args:
        devices: the CUDA devices that the program believes in.
        finish: waits until the device has done what was called before.
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
    # Its arguments are checked before any mode sees them.
    yield patch(
        torch.Tensor, "record_stream", lambda tensor, stream: None, "memory is not reused early"
    )

"""Processes of several hosts that wait for each other, tell each other what they did, and end together.

jax.distributed has such a thing, but ends a process with a stack trace when another one dies, and has no
other way. Here process 0 listens, the others hold a connection to it; messages are JSON. A process that dies
closes its connection, one that is cut off falls silent: either way all others hear of it, within seconds, and
say so in one line.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from converters.errors import HostsError
from converters.hosts.identity import Process

_Value = TypeVar("_Value")

BEAT_SECONDS = 3.0
SILENT_SECONDS = 30.0  # then a process is taken for dead
PATIENCE_SECONDS = 300.0  # until all must have begun
_AGAIN_SECONDS = 0.2
_HELLO_SECONDS = 5.0  # who says nothing for so long is none of ours
_LONGEST_MESSAGE = 1 << 30
_LENGTH_BYTES = 8
_HELLO = "tpu-migrate 1"
_ALIKE = "start the same command on every host, each with its own number"
_START_AGAIN = "start the same command on every host again, with --resume"


class Hosts:
    """The processes of one conversion, as one of them sees them. This one is alone.

    Attributes:
        process: which one this is.
    """

    def __init__(self, process: Process) -> None:
        self.process = process

    @property
    def count(self) -> int:
        """How many there are."""
        return self.process.count

    @property
    def first(self) -> bool:
        """Whether this is process 0, which does what only one may do."""
        return self.process.index == 0

    def all_told(self, value: _Value) -> list[_Value]:
        """What each process tells, by its number; waits for all. JSON values.

        Raises:
            HostsError: one of them died, failed, or is at another place.
        """
        return [value]

    def from_first(self, make: Callable[[], _Value]) -> _Value:
        """What process 0 makes; the others wait for it. A JSON value.

        Raises:
            HostsError: as in `all_told`.
        """
        return make()

    def require_all(self) -> None:
        """No other process has died or failed.

        Raises:
            HostsError: one has.
        """

    def agree(self, values: Mapping[str, str]) -> None:
        """All processes were given the same.

        Args:
            values: what it is → what this process was given.

        Raises:
            HostsError: one was given another thing, by name.
        """
        told = self.all_told(dict(values))
        for number, other in enumerate(told):
            for what, value in told[0].items():
                if other.get(what) != value:
                    raise HostsError(
                        f"process {number} has another {what} than process 0: {other.get(what)}, not {value}",
                        "start the same command on every host",
                    )


ALONE = Hosts(Process(0, 1))


class _Line:
    """A connection to another process."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        connection.settimeout(SILENT_SECONDS)
        with suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, message: Mapping[str, Any]) -> None:
        data = json.dumps(message).encode()
        with self._lock, suppress(OSError):  # who reads will hear that it is gone
            self._connection.sendall(len(data).to_bytes(_LENGTH_BYTES, "big") + data)

    def receive(self) -> dict[str, Any]:
        """The next message; OSError, ValueError: there is none."""
        length = int.from_bytes(self._exactly(_LENGTH_BYTES), "big")
        if length > _LONGEST_MESSAGE:
            raise ValueError("no message of ours")
        message = json.loads(self._exactly(length))
        if not isinstance(message, dict):
            raise ValueError("no message of ours")
        return message

    def close(self) -> None:
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _exactly(self, size: int) -> bytes:
        held = bytearray()
        while len(held) < size:
            part = self._connection.recv(min(size - len(held), 1 << 20))
            if not part:
                raise ConnectionResetError
            held += part
        return bytes(held)


class _Together(Hosts):
    """Some processes, connected: process 0 with each other one.

    Args:
        process: which one this is.
        lines: number of a process → the connection to it.
    """

    def __init__(self, process: Process, lines: dict[int, _Line]) -> None:
        super().__init__(process)
        self._lines = lines
        self._values: dict[int, deque[Any]] = {number: deque() for number in lines}
        self._failure = ""
        self._leaving: set[int] = set()
        self._done = threading.Event()
        self._news = threading.Condition()
        self._threads = [
            threading.Thread(target=self._listen, args=(number,), daemon=True) for number in lines
        ]
        self._threads.append(threading.Thread(target=self._beat, daemon=True))
        for thread in self._threads:
            thread.start()

    def all_told(self, value: _Value) -> list[_Value]:
        """What each process tells, by its number; waits for all."""
        if not self.first:
            self._lines[0].send({"value": value})
            told: list[_Value] = self._next(0)
            return told
        told = [value, *(self._next(number) for number in range(1, self.count))]
        for line in self._lines.values():
            line.send({"value": told})
        return told

    def from_first(self, make: Callable[[], _Value]) -> _Value:
        """What process 0 makes; the others wait for it."""
        if not self.first:
            made: _Value = self._next(0)
            return made
        made = make()
        for line in self._lines.values():
            line.send({"value": made})
        return made

    def require_all(self) -> None:
        """No other process has died or failed."""
        with self._news:
            self._raise_failure()

    def leave(self, error: BaseException | None) -> None:
        """Say why this process ends, and end the connections."""
        with self._news:
            heard = self._failure
        if error is not None and not heard:
            line = getattr(error, "what", "") or type(error).__name__
            self._tell_failure(f"process {self.process.index} of {self.count} failed: {line}")
        for line in self._lines.values():
            line.send({"leaves": True})
        self._done.set()
        for line in self._lines.values():
            line.close()
        for thread in self._threads:
            thread.join(BEAT_SECONDS)

    def _next(self, number: int) -> Any:
        with self._news:
            while not self._values[number]:
                self._raise_failure()
                if number in self._leaving:
                    raise HostsError(
                        f"process {number} of {self.count} ended before this one",
                        "start the same command on every host",
                    )
                self._news.wait()
            return self._values[number].popleft()

    def _raise_failure(self) -> None:
        if self._failure:
            raise HostsError(self._failure, _START_AGAIN)

    def _listen(self, number: int) -> None:
        line = self._lines[number]
        try:
            while True:
                message = line.receive()
                with self._news:
                    if "value" in message:
                        self._values[number].append(message["value"])
                    elif "failed" in message:
                        self._failed(str(message["failed"]))
                    elif "leaves" in message:
                        self._leaving.add(number)
                        self._news.notify_all()
                        return
                    self._news.notify_all()
        except TimeoutError:
            gone = f"was not heard of for {SILENT_SECONDS:.0f} s"
        except (OSError, ValueError, RecursionError):
            gone = "died"
        if not self._done.is_set():
            with self._news:
                self._failed(f"process {number} of {self.count} {gone}")

    def _failed(self, what: str) -> None:
        """Under the lock: the first failure counts, and process 0 tells it to all."""
        if not self._failure:
            self._failure = what
            self._news.notify_all()
            if self.first:
                self._tell_failure(what)

    def _tell_failure(self, what: str) -> None:
        for line in self._lines.values():
            line.send({"failed": what})

    def _beat(self) -> None:
        while not self._done.wait(BEAT_SECONDS):
            for line in self._lines.values():
                line.send({})


@contextmanager
def met(
    process: Process,
    patience: float = PATIENCE_SECONDS,
    waiting: Callable[[str], None] = lambda line: None,
) -> Iterator[Hosts]:
    """The processes, when all of them are there; at the end of it they know how this one ended.

    Args:
        process: which one this is.
        patience: seconds until all must have begun.
        waiting: called with a line where this takes more than a moment.

    Raises:
        HostsError: process 0 is not reached, others do not come, or are not as this one knows them.
    """
    if process.count == 1:
        yield Hosts(process)
        return
    connect = _listened if process.index == 0 else _called
    together = _Together(process, connect(process, time.monotonic() + patience, waiting))
    try:
        yield together
    except BaseException as error:
        together.leave(error)
        raise
    together.leave(None)


def _listened(process: Process, until: float, waiting: Callable[[str], None]) -> dict[int, _Line]:
    """Process 0: the connections of all others."""
    waiting(f"waiting for all {process.count} processes at {process.host}:{process.port}")
    lines: dict[int, _Line] = {}
    with _server(process) as server:
        while len(lines) < process.count - 1:
            server.settimeout(max(until - time.monotonic(), 0.001))
            try:
                connection, _ = server.accept()
            except TimeoutError:
                lacking = sorted(set(range(1, process.count)) - lines.keys())
                named = ", ".join(map(str, lacking[:8])) + (", …" if len(lacking) > 8 else "")
                _refuse(lines, f"process {named} of {process.count} did not come")
            line = _Line(connection)
            connection.settimeout(_HELLO_SECONDS)
            try:
                hello = line.receive()
            except (OSError, ValueError, RecursionError):
                line.close()  # whatever looks for open ports
                continue
            if hello.get("hello") != _HELLO:
                line.send({"failed": "process 0 is of another version of this program"})
                line.close()
                continue
            connection.settimeout(SILENT_SECONDS)
            number: Any = hello.get("index")
            count = hello.get("count")
            if count != process.count:
                lines[-1] = line
                _refuse(
                    lines,
                    f"process {number} says that there are {count}, process 0 {process.count}",
                )
            if type(number) is not int or not 0 < number < process.count or number in lines:
                lines[-1] = line
                _refuse(lines, f"two processes say that they are {number} of {process.count}")
            lines[number] = line
    for line in lines.values():
        line.send({"welcome": True})
    return lines


def _server(process: Process) -> socket.socket:
    # One that is reached by this host only listens to this host only.
    local = process.host in ("localhost", "127.0.0.1", "::1")
    try:
        if local:
            family = socket.AF_INET6 if process.host == "::1" else socket.AF_INET
            return socket.create_server((process.host, process.port), family=family)
        if socket.has_dualstack_ipv6():
            return socket.create_server(
                ("", process.port), family=socket.AF_INET6, dualstack_ipv6=True
            )
        return socket.create_server(("", process.port))
    except OSError as error:
        raise HostsError(
            f"port {process.port} of this host cannot be listened to ({error.strerror or error})",
            "give another port in --coordinator, the same on all",
        ) from None


def _called(process: Process, until: float, waiting: Callable[[str], None]) -> dict[int, _Line]:
    """Another process: the connection to process 0."""
    where = f"{process.host}:{process.port}"
    said = False
    while True:
        left = until - time.monotonic()
        try:
            connection = socket.create_connection(
                (process.host, process.port), timeout=max(min(left, 10.0), 0.001)
            )
            break
        except OSError as error:
            if left <= _AGAIN_SECONDS:
                raise HostsError(
                    f"process 0 does not answer at {where} ({error.strerror or error})",
                    "start it there, and see that this port of its host may be reached",
                ) from None
            if not said:
                said = True
                waiting(f"waiting for process 0 at {where}")
            time.sleep(_AGAIN_SECONDS)
    line = _Line(connection)
    line.send({"hello": _HELLO, "index": process.index, "count": process.count})
    connection.settimeout(max(until - time.monotonic(), SILENT_SECONDS))  # for the others to come
    try:
        answer = line.receive()
    except (OSError, ValueError, RecursionError):
        line.close()
        raise HostsError(
            f"what answers at {where} is not process 0 of this program, or it ended",
            "see what it says",
        ) from None
    if "welcome" not in answer:
        line.close()
        raise HostsError(str(answer.get("failed", "process 0 refuses")), _ALIKE)
    connection.settimeout(SILENT_SECONDS)
    return {0: line}


def _refuse(lines: Mapping[int, _Line], what: str) -> None:
    for line in lines.values():
        line.send({"failed": what})
        line.close()
    raise HostsError(what, _ALIKE)

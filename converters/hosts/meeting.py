"""Processes of several hosts that wait for each other, exchange results, and end together.

They communicate through a key-value store (`store.py`) held by process 0. Its keys:

    tpu-migrate 2   how many processes process 0 knows of
    here/I          process I has come: a name that no other process has
    welcome         all have come
    gathered/N/I        what process I tells in exchange N
    value/N         what process 0 answers all in exchange N
    state/I         a number that grows while process I lives; "over" when it needs process 0 no longer
    failed          the first failure, which ends all processes
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from converters.errors import HostsError
from converters.hosts.hosts import Hosts
from converters.hosts.identity import Process
from converters.hosts.ports import listen, reach
from converters.hosts.store import START_AGAIN, KeyValueStore
from converters.installing import is_installed, missing_error

_Value = TypeVar("_Value")

SILENT_SECONDS = 25.0  # seconds of silence after which a process counts as dead
PATIENCE_SECONDS = 300.0  # seconds within which all processes must start
_HELLO_SECONDS = 5.0  # seconds of silence after which the other side is not process 0
_BEAT_SECONDS = 0.5
_LOOK_SECONDS = 0.05
_LONGEST_LINE = 2000
_PROGRAM = "tpu-migrate 2"
_OVER = "over"
_ALIKE = "start the same command on every host"


class _StoreHosts(Hosts):
    """Processes that communicate through a store.

    Args:
        process: the identity of this process.
        store: the store held by process 0.
    """

    def __init__(self, process: Process, store: KeyValueStore) -> None:
        super().__init__(process)
        self._store = store
        self._exchange = 0
        self._beats = 0
        self._failure: HostsError | None = None
        self._leaving = threading.Event()
        # Process → its last state, and the time of its change. Process 0 watches all others; the
        # others watch process 0.
        self._states: dict[int, tuple[str, float]] = {}
        self._turns = threading.Lock()
        self._thread = threading.Thread(target=self._live, daemon=True)

    def meet(self, until: float) -> None:
        """Wait for all processes: process 0 until a time, the others as long as process 0 lives.

        Raises:
            HostsError: a process does not come, or disagrees about the processes.
        """
        if not self.first:
            self._join()
            return
        self._tell(_PROGRAM, self.count)
        self._thread.start()
        lacking = []
        for number in range(1, self.count):
            if self._get(f"here/{number}", number, until) is None:
                lacking.append(number)
            else:
                self._states[number] = "", time.monotonic()
        if lacking:
            named = ", ".join(map(str, lacking[:8])) + (", …" if len(lacking) > 8 else "")
            raise self._fail(f"process {named} of {self.count} did not come")
        self._tell("welcome", True)

    def _join(self) -> None:
        until = time.monotonic() + _HELLO_SECONDS
        try:
            while (count := self._store.read(_PROGRAM)) is None and time.monotonic() < until:
                time.sleep(_LOOK_SECONDS)
        except HostsError:
            count = None
        if count is None:
            raise _stranger(self.process)
        me, number = uuid.uuid4().hex, self.process.index
        if int(count) != self.count:
            raise self._fail(f"process {number} expects {self.count} processes, process 0 {count}")
        if self._store.claim(f"here/{number}", json.dumps(me)) != json.dumps(me):
            raise self._fail(f"two processes say that they are {number} of {self.count}")
        self._states[0] = "", time.monotonic()
        self._thread.start()
        self._get("welcome", 0)

    def gather(self, value: _Value) -> list[_Value]:
        """Return the value of each process, by its number. Wait for all."""
        key = f"told/{self._exchange + 1}"
        if not self.first:
            self._tell(f"{key}/{self.process.index}", value)
        others = range(1, self.count)
        return self.from_first(
            lambda: [value, *(self._get(f"{key}/{number}", number) for number in others)]
        )

    def from_first(self, make: Callable[[], _Value]) -> _Value:
        """Return the value made by process 0; the others wait for it."""
        self._exchange += 1
        key = f"value/{self._exchange}"
        if not self.first:
            value: _Value = self._get(key, 0)
            return value
        value = make()
        self._tell(key, value)
        return value

    def require_all(self) -> None:
        """Check that no other process has died or failed."""
        if self._failure is not None:
            raise HostsError(self._failure.what, self._failure.remedy)

    def leave(self, error: BaseException | None) -> None:
        """Report why this process ends. Process 0 stays until no other process needs it."""
        if self._thread.is_alive():
            with suppress(HostsError):
                if error is not None and self._failure is None:
                    line = getattr(error, "what", "") or type(error).__name__
                    self._fail(f"{self.process} failed: {line}", START_AGAIN)
                self._leaving.set()
                self._turn()
                while self.first and any(state != _OVER for state, _ in self._states.values()):
                    time.sleep(_LOOK_SECONDS)
                    self._turn()
            self._thread.join(_HELLO_SECONDS)
        self._store.close()

    def _tell(self, key: str, value: Any) -> None:
        try:
            self._store.write(key, json.dumps(value))
        except HostsError:
            self.require_all()
            raise

    def _get(self, key: str, sender: int, until: float | None = None) -> Any:
        """Wait for the value of a key set by another process; None if it is missing at the deadline."""
        while True:
            ended = self._states.get(sender, ("", 0))[0] == _OVER
            try:
                text = self._store.read(key)
            except HostsError:
                self.require_all()
                raise
            if text is not None:
                return json.loads(text)
            self.require_all()
            if ended:
                line = f"process {sender} of {self.count} ended before this one"
                raise HostsError(line, _ALIKE)
            if until is not None and time.monotonic() > until:
                return None
            time.sleep(_LOOK_SECONDS)

    def _fail(self, what: str, remedy: str = f"{_ALIKE}, each with its own number") -> HostsError:
        """Report a failure to all processes, and return the decisive failure: the first."""
        line = json.dumps([what[:_LONGEST_LINE], remedy])
        first = HostsError(*json.loads(self._store.claim("failed", line)))
        self._failure = self._failure or first
        return self._failure

    def _live(self) -> None:
        """Take turns until this process leaves, in a thread."""
        try:
            while not self._leaving.wait(_BEAT_SECONDS):
                self._turn()
        except HostsError as error:
            self._failure = self._failure or error

    def _turn(self) -> None:
        """Show that this process lives, and check whether the others do."""
        with self._turns:
            self._beat()
            states = {number: self._store.read(f"state/{number}") for number in [*self._states]}
            # A process whose state is over because of a failure has reported the failure before.
            if (failed := self._store.read("failed")) is not None and self._failure is None:
                self._failure = HostsError(*json.loads(failed))
            now = time.monotonic()
            for number, state in states.items():
                before, since = self._states[number]
                if before == _OVER:  # it left, or was silent for too long
                    continue
                if (state or "") != before:
                    self._states[number] = state or "", now
                elif self.first and now - since > SILENT_SECONDS:
                    silence = f"was not heard of for {SILENT_SECONDS:.0f} s"
                    self._fail(f"process {number} of {self.count} {silence}", START_AGAIN)
                    self._states[number] = _OVER, now

    def _beat(self) -> None:
        """Write a new state of this process."""
        self._beats += 1
        over = self._leaving.is_set() or self._failure is not None
        self._store.write(f"state/{self.process.index}", _OVER if over else str(self._beats))


def _stranger(process: Process) -> HostsError:
    return HostsError(
        f"what answers at {process.host}:{process.port} is not process 0 of this program in this version, "
        "or it ended",
        "check which program listens there",
    )


@contextmanager
def met(
    process: Process,
    patience: float = PATIENCE_SECONDS,
    waiting: Callable[[str], None] = lambda line: None,
) -> Iterator[Hosts]:
    """Context with all processes; when it ends, all processes learn how this one ended.

    Args:
        process: the identity of this process.
        patience: seconds within which all processes must start.
        waiting: called with a line of text if this takes more than a moment.

    Raises:
        HostsError: process 0 is unreachable, others do not come, or they disagree about the processes.
        MissingDependencyError: torch is not installed here.
    """
    if process.count == 1:
        yield Hosts(process)
        return
    if not is_installed("torch"):
        raise missing_error("torch", needed_by="a conversion by several hosts")
    import torch.distributed  # noqa: F401 (seconds: before the others wait for an answer)

    until = time.monotonic() + patience
    if process.index == 0:
        store = KeyValueStore(process, listen(process), SILENT_SECONDS)
        waiting(f"waiting for all {process.count} processes at {process.host}:{process.port}")
    else:
        reach(process, until, waiting)
        try:
            store = KeyValueStore(process, None, SILENT_SECONDS)
        except HostsError:
            raise _stranger(process) from None
    together = _StoreHosts(process, store)
    try:
        together.meet(until)
        yield together
    except BaseException as error:
        together.leave(error)
        raise
    together.leave(None)

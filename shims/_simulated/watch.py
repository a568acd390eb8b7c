"""Diagnosis of a waiting replica: which collective the others are in, and how they ended.

Replicas exchange this through their store, only on request and at their end. A run without problems
costs one thread that checks for requests twice a second.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch.distributed as dist

from shims._simulated import calls as _calls
from shims._simulated.calls import Call
from shims._simulated.reads import Reads
from shims.errors import PeerLostError, ReplicasDisagreeError

# Seconds until a replica reports on stderr which replica it waits for, if that replica may still
# come.
NOTICE_SECONDS = "SHIMS_WAIT_NOTICE_SECONDS"
_NOTICE_SECONDS = 60.0
_POLL_SECONDS = 0.5
# Seconds for which two replicas may see different states of the same ending.
_LAST_WORD_SECONDS = 2.0
# Timeout of the store, which is long only on an overloaded machine.
_LAST_ANSWER_SECONDS = 10.0
# Longer than reading the frames of a thread takes, even for a process that waits for a core.
_UNDISTURBED_SECONDS = 10.0
# Polls of about 2 seconds each without progress.
_ROUNDS, _ROUNDS_OF_DATA = 2, 8
_REMEDY = "every replica must run the same collectives; on a TPU this hangs"


@dataclass(frozen=True)
class _State:
    """Current state of a replica, as it answers a request.

    Attributes:
        asked: number of requests so far; distinguishes a new answer from an old one.
        waits: whether the replica is blocked by other replicas.
        serial: identifies the wait; different even for waits at the same line.
        where: the end of a sentence: `in rendezvous('save') at train.py:40 (step 3)`.
        collective: whether the replica waits in a collective of the simulation.
        everyone: whether that collective continues as soon as all replicas are in one.
    """

    asked: int
    waits: bool
    serial: str
    where: str
    collective: bool = False
    everyone: bool = False


class Watch:
    """Exchange of states between this replica and the others.

    Args:
        connect: opens a connection to the replicas' store; each of two threads needs one.
        rank: this replica's ordinal.
        size: the number of replicas.

    Attributes:
        step: the number of steps that have ended.
        reads: the program's reads of collective results.
    """

    def __init__(self, connect: Callable[[], dist.Store], rank: int, size: int) -> None:
        self.rank = rank
        self.reads = Reads(lambda: self.step)
        self._others = [other for other in range(size) if other != rank]
        self._store = connect()
        self._lock = threading.Lock()
        self.step = 0
        self._waits_in: tuple[Call, bool] | None = None
        self._waits = 0
        self._last: dict[int, Call] = {}
        self._ended = threading.Event()
        self._notice = float(os.environ.get(NOTICE_SECONDS, _NOTICE_SECONDS))
        self._store.set(f"process/{rank}", str(os.getpid()))
        self._answering = threading.Thread(
            target=self._answer, args=(connect,), name="shims-watch", daemon=True
        )
        self._answering.start()
        _at_exit(self)

    @contextlib.contextmanager
    def waiting(
        self, call: Call, peers: Sequence[int] | None = None
    ) -> Iterator[Callable[[], None]]:
        """Context in which this replica waits in `call`. Call the yielded function every few seconds.

        Args:
            call: the collective.
            peers: the replicas waited for; None for a collective of all replicas.

        Raises:
            ReplicasDisagreeError: the others wait in another collective.
            PeerLostError: one of the others has ended.
        """
        self._waits += 1
        everyone = peers is None
        awaited = self._others if peers is None else peers
        self._waits_in = (call, everyone)
        before: dict[int, _State] = {}
        began, noticed, rounds = time.monotonic(), False, 0

        def poll() -> None:
            nonlocal before, noticed, rounds
            if ended := self._endings(awaited):
                raise self._peer_lost(call, ended)
            states = self._ask()
            serials = {other: state.serial for other, state in states.items() if state.waits}
            stuck = len(serials) == len(self._others) and all(
                other in before and before[other].serial == serial
                for other, serial in serials.items()
            )
            rounds = rounds + 1 if stuck else 0
            self._expect_progress(call, everyone, states, rounds)
            before = states
            if not noticed and time.monotonic() - began > self._notice:
                noticed = True
                self._say_who_waits(call, states, time.monotonic() - began)

        try:
            yield poll
        finally:
            self._waits_in = None

    def seen(self, calls: dict[int, Call]) -> None:
        """Remember the last collective of each replica."""
        self._last = calls

    def lost(self, call: Call) -> PeerLostError:
        """Return the error for a connection that closed while this replica was in `call`."""
        deadline = time.monotonic() + _LAST_WORD_SECONDS
        while not (ended := self._endings(self._others)) and time.monotonic() < deadline:
            time.sleep(0.05)
        return self._peer_lost(call, ended)

    def leave(self, how: str) -> None:
        """Report how this replica ends: "its function returned", "it raised ValueError: …"."""
        if not self._ended.is_set():
            self._ended.set()
            # The store's process may already have ended.
            with contextlib.suppress(RuntimeError):
                self._store.set(f"ended/{self.rank}", how)
            # Python unwinds a thread that returns to it during shutdown. The C++ of the store's
            # client does not allow that: the process aborts with "terminate called without an
            # active exception".
            self._answering.join(_LAST_ANSWER_SECONDS)

    def _peer_lost(self, call: Call, ended: dict[int, str]) -> PeerLostError:
        never = "another replica never reaches: it has ended"
        if ended:
            # A replica that lost its own peer is not the cause.
            other = min(ended, key=lambda replica: PeerLostError.__name__ in ended[replica])
            last = self._last.get(other)
            after = f" after {last}" if last else " before any collective"
            never = f"replica {other} never reaches: {ended[other]}{after}"
        return PeerLostError(f"replica {self.rank} waits in {call}, which {never}", _REMEDY)

    def _endings(self, replicas: Sequence[int]) -> dict[int, str]:
        """Return the endings of those replicas that have ended."""
        endings = {}
        with self._lock, contextlib.suppress(RuntimeError):
            for other in replicas:
                if self._store.check([f"ended/{other}"]):
                    endings[other] = self._store.get(f"ended/{other}").decode()
                elif not _runs(int(self._store.get(f"process/{other}"))):
                    endings[other] = "its process ended without a word"
        return endings

    def _ask(self) -> dict[int, _State]:
        """Return the states of the other replicas. Replicas that do not answer, because they compile,
        are left out."""
        states: dict[int, _State] = {}
        with self._lock, contextlib.suppress(RuntimeError):
            number = self._store.add("asked", 1)
            deadline = time.monotonic() + 2 * _POLL_SECONDS
            while len(states) < len(self._others) and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS / 4)
                for other in self._others:
                    if self._store.check([f"state/{other}"]):
                        state = _State(**json.loads(self._store.get(f"state/{other}")))
                        if state.asked >= number:
                            states[other] = state
        return states

    def _expect_progress(
        self, call: Call, everyone: bool, states: dict[int, _State], rounds: int
    ) -> None:
        """Raise if all replicas waited for `rounds` polls, and not only for each other's data."""
        for other, state in states.items():
            # If all replicas are in a collective of all, or pass data on, a long transfer may be in
            # progress.
            enough = _ROUNDS if state.everyone != everyone else _ROUNDS_OF_DATA
            if rounds >= enough and not (state.everyone and everyone):
                raise ReplicasDisagreeError(
                    f"replica {self.rank} waits in {call}, which replica {other} never reaches: "
                    f"it is {state.where}",
                    _REMEDY,
                )

    def _say_who_waits(self, call: Call, states: dict[int, _State], seconds: float) -> None:
        if any(states[other].collective for other in states if other < self.rank):
            return  # That replica reports it.
        others = "; ".join(
            f"replica {other} is {states[other].where}"
            if other in states
            else f"replica {other} does not answer, as while it compiles"
            for other in self._others
        )
        sys.stderr.write(
            f"shims: replica {self.rank} has waited {seconds:.0f} s in {call}; {others}\n"
        )

    def _answer(self, connect: Callable[[], dist.Store]) -> None:
        with contextlib.suppress(RuntimeError):  # The store has ended, and this process ends too.
            store = connect()
            before = 0
            while not self._ended.wait(_POLL_SECONDS):
                asked = store.add("asked", 0)
                if asked != before:
                    before = asked
                    store.set(f"state/{self.rank}", json.dumps(asdict(self._state(asked))))

    def _state(self, asked: int) -> _State:
        waits_in, number = self._waits_in, self._waits
        if waits_in is not None:
            call, everyone = waits_in
            return _State(asked, True, f"collective {number}", f"in {call}", True, everyone)
        with _undisturbed():
            thread_state = _thread_of_the_program()
        if thread_state is None:
            return _State(asked, False, "", f"in no line of the program (step {self.step})")
        thread, where, waits = thread_state
        serial = f"{where} {_switches(thread)}"
        return _State(asked, waits, serial, f"{where} (step {self.step})")


def _thread_of_the_program() -> tuple[int, str, bool] | None:
    """Return the first thread that runs program code, with the result of `_where`."""
    for thread, innermost in _calls.threads_of_the_program():
        return thread, *_where(innermost)
    return None


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Context in which no other thread runs Python, so that none returns from an inspected frame.

    A returning thread would leave the frame's values alive: see `threads_of_the_program`.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(_UNDISTURBED_SECONDS)
    # Threads that already wait for the GIL request their turn only after the previous interval.
    time.sleep(2 * before)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _where(innermost: FrameType) -> tuple[str, bool]:
    """Return where a thread is, and whether it waits for other processes through torch.distributed."""
    waits = innermost.f_globals.get("__name__", "").startswith("torch.distributed")
    called, frame = "", innermost
    while not _calls.is_the_programs(frame) and frame.f_back is not None:
        function = frame.f_code.co_name
        if not function.startswith("_") and function != "wrapper":
            called = function
        frame = frame.f_back
    location = _calls.location_of(frame)
    return (f"in {called} at {location}" if called else f"at {location}"), waits


def _switches(thread: int) -> str:
    """Return how often the thread has gone to sleep; the count is unchanged while it waits in the same
    call."""
    for running in threading.enumerate():
        if running.ident == thread:
            status = Path(f"/proc/self/task/{running.native_id}/status")
            with contextlib.suppress(OSError):
                text = status.read_text()
                return text.partition("voluntary_ctxt_switches:")[2].partition("\n")[0].strip()
    return str(time.monotonic())


def _runs(process: int) -> bool:
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return not Path("/proc/self").exists()
    # After the name, which may contain spaces and brackets. Z: a zombie.
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def _at_exit(watch: Watch) -> None:
    """Report the ending of a replica that is the program's own process."""
    raised: list[str] = []
    before = sys.excepthook
    process = os.getpid()

    def leave() -> None:
        if os.getpid() == process:  # Not a forked child.
            watch.leave(raised[-1] if raised else "its program ended")

    def note(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> Any:
        raised.append(f"it raised {kind.__name__}: {error}")
        return before(kind, error, trace)

    sys.excepthook = note
    atexit.register(leave)

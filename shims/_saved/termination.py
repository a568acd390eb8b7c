"""Detection of SIGTERM in any thread, without interrupting the training."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import threading


class Termination:
    """Context in which SIGTERM does not end the process but makes `asked()` true.

    `signal.signal` works in the main thread only, and torch_xla runs replicas in other threads.
    `faulthandler` handles a signal in any thread, in C, by writing a traceback to a file. Here that
    file is a pipe: data in the pipe means that the signal arrived. Several replicas of one process
    (one thread each) share it.
    """

    _lock = threading.Lock()
    _entered = 0
    _asked = False
    _ends = (-1, -1)

    def __enter__(self) -> Termination:
        kind = type(self)
        with kind._lock:
            kind._entered += 1
            if kind._entered == 1:
                kind._asked = False
                kind._ends = os.pipe()
                for end in kind._ends:
                    # A full pipe must not block the signal handler, and an empty pipe must not
                    # block the training.
                    os.set_blocking(end, False)
                faulthandler.register(
                    signal.SIGTERM, file=kind._ends[1], all_threads=False, chain=False
                )
        return self

    def __exit__(self, *error: object) -> None:
        kind = type(self)
        with kind._lock:
            kind._entered -= 1
            if kind._entered == 0:
                # Restores the previous handler.
                faulthandler.unregister(signal.SIGTERM)
                for end in kind._ends:
                    os.close(end)

    def asked(self) -> bool:
        """Whether SIGTERM arrived since the first thread entered."""
        kind = type(self)
        with kind._lock:
            if not kind._asked and kind._entered:
                with contextlib.suppress(BlockingIOError):
                    kind._asked = bool(os.read(kind._ends[0], 1))
            return kind._asked

    @classmethod
    def forget(cls) -> None:
        """Ignore this context in a forked child: a SIGTERM sent to the child is not for this process."""
        cls._lock = threading.Lock()
        if cls._entered:
            cls._entered = 0
            faulthandler.unregister(signal.SIGTERM)
            for end in cls._ends:
                os.close(end)


os.register_at_fork(after_in_child=Termination.forget)

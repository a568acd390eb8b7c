"""Key-value store through which the processes of one conversion communicate, held by process 0.

It is torch.distributed's TCPStore, so all hosts need torch. The client of jax.distributed cannot
replace it: it aborts its process when process 0 dies, even with `missed_heartbeat_callback`
(std::bad_cast in jaxlib 0.10).
"""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from converters.errors import HostsError
from converters.hosts.identity import Process

START_AGAIN = "start the same command on every host again, with --resume"
_OPEN_SECONDS = 10.0
_PART = 4 << 20  # bytes; TCPStore's server accepts 8 MiB at once


class KeyValueStore:
    """Text values by key, shared by all processes.

    Args:
        process: the process that opens the store.
        server: the listening socket, in process 0.
        seconds: timeout of a call: a call of TCPStore never returns if a host is cut off.

    Each method raises HostsError if process 0 no longer answers.
    """

    def __init__(self, process: Process, server: socket.socket | None, seconds: float) -> None:
        self._process = process
        self._lock = threading.Lock()
        self._store = self._within(_OPEN_SECONDS, lambda: _tcp_store(process, server))
        self._seconds = seconds

    def read(self, key: str) -> str | None:
        """Return the text of a key, or None."""
        if not self._ask("check", [key]):
            return None
        parts = range(int(self._ask("get", key)))
        return b"".join(self._ask("get", f"{key}/{part}") for part in parts).decode()

    def write(self, key: str, text: str) -> None:
        """Set the text of a key."""
        starts = range(0, len(text), _PART)
        for number, start in enumerate(starts):
            self._ask("set", f"{key}/{number}", text[start : start + _PART])
        self._ask("set", key, str(len(starts)))

    def claim(self, key: str, text: str) -> str:
        """Set the text of a key that has none; return the current text."""
        claimed: bytes = self._ask("compare_set", f"{key}/0", "", text)
        self._ask("set", key, "1")
        return claimed.decode()

    def close(self) -> None:
        """End the connection; process 0 ends the store."""
        self._store = None

    def _ask(self, method: str, *arguments: Any) -> Any:
        return self._within(self._seconds, lambda: getattr(self._store, method)(*arguments))

    def _within(self, seconds: float, call: Callable[[], Any]) -> Any:
        answers: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()

        def run() -> None:
            try:
                with self._lock:
                    answers.put((True, call()))
            except Exception:  # each library has its own errors
                answers.put((False, "died"))

        threading.Thread(target=run, daemon=True).start()
        try:
            answered, value = answers.get(timeout=seconds)
        except queue.Empty:
            answered, value = False, f"was not heard of for {seconds:.0f} s"
        if not answered:
            raise HostsError(f"process 0 of {self._process.count} {value}", START_AGAIN)
        return value


def _tcp_store(process: Process, server: socket.socket | None) -> Any:
    from torch.distributed import TCPStore

    return TCPStore(
        process.host,
        process.port,
        is_master=server is not None,
        wait_for_workers=False,
        timeout=timedelta(seconds=_OPEN_SECONDS),
        master_listen_fd=None if server is None else server.detach(),
    )

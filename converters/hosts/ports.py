"""Port of process 0: opened by process 0, reached by the others."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from converters.errors import HostsError
from converters.hosts.identity import Process

_AGAIN_SECONDS = 0.2
_CONNECT_SECONDS = 10.0


def listen(process: Process) -> socket.socket:
    """Listen at the port of process 0; on this host only, if the others use a local name.

    Raises:
        HostsError: the port is taken.
    """
    local = process.host in ("localhost", "127.0.0.1", "::1")
    dual = not local and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual or process.host == "::1" else socket.AF_INET
    address = (process.host if local else "", process.port)
    try:
        return socket.create_server(address, family=family, dualstack_ipv6=dual)
    except OSError as error:
        raise HostsError(
            f"cannot listen on port {process.port} of this host ({error.strerror or error})",
            "use another port in --coordinator, the same on all hosts",
        ) from None


def reach(process: Process, until: float, waiting: Callable[[str], None]) -> None:
    """Wait until the port of process 0 accepts connections.

    Raises:
        HostsError: it does not accept any by the time `until`.
    """
    where = f"{process.host}:{process.port}"
    reported = False
    while True:
        left = until - time.monotonic()
        try:
            seconds = max(min(left, _CONNECT_SECONDS), 0.001)
            socket.create_connection((process.host, process.port), seconds).close()
        except OSError as error:
            if left <= _AGAIN_SECONDS:
                raise HostsError(
                    f"process 0 does not answer at {where} ({error.strerror or error})",
                    "start it there, and check that the port of its host is reachable",
                ) from None
            if not reported:
                reported = True
                waiting(f"waiting for process 0 at {where}")
            time.sleep(_AGAIN_SECONDS)
        else:
            return

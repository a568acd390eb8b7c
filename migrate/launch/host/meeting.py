"""Meeting of all hosts before training: all continue, or all stop with one line that names the host at fault.

Host 0 listens. Each host sends its number and its problem, if it has one. Host 0 answers with the lines for
all hosts, empty if every host came and none has a problem.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import time
from collections.abc import Callable

from migrate.launch.host.hosts import SliceHost

PORT = 8571
_RETRY_SECONDS = 0.5
_LOOK_SECONDS = 0.5  # time between two looks whether this host was stopped
_MESSAGE_SECONDS = 10.0


def meet(
    host: SliceHost,
    problem: str,
    patience: float,
    port: int = PORT,
    stopped: Callable[[], bool] = lambda: False,
) -> list[str]:
    """Wait for all hosts, and return why the job cannot continue; nothing if it can.

    Args:
        host: this host.
        problem: what is wrong with this host; empty: nothing.
        patience: seconds to wait for the others.
        port: port of host 0.
        stopped: whether this host no longer waits, as after SIGTERM.
    """
    if host.count == 1:
        return [f"host 0: {problem}"] if problem else []
    deadline = time.monotonic() + patience
    if host.index == 0:
        lines = _receive(host, problem, deadline, patience, port, stopped)
    else:
        lines = _report(host, problem, deadline, patience, port, stopped)
    return [f"host {host.index} was stopped"] if stopped() else lines


def _receive(
    host: SliceHost,
    problem: str,
    deadline: float,
    patience: float,
    port: int,
    stopped: Callable[[], bool],
) -> list[str]:
    """Wait for the other hosts, and tell each the verdict."""
    problems = {0: problem}
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("", port), backlog=host.count))
        connections = []
        while len(problems) < host.count and (left := deadline - time.monotonic()) > 0:
            if stopped():
                return []  # without a verdict, so that the others wait for this host's next start
            server.settimeout(min(left, _LOOK_SECONDS))
            try:
                connection = stack.enter_context(server.accept()[0])
                connection.settimeout(min(left, _MESSAGE_SECONDS))
                message = json.loads(_line(connection))
                problems[int(message["host"])] = message["problem"]
                connections.append(connection)
            except (OSError, ValueError, KeyError):
                continue  # not a host of this job, or a host that stopped meanwhile
        lines = _verdict(problems, host.count, patience)
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.sendall(json.dumps(lines).encode() + b"\n")
    return lines


def _verdict(problems: dict[int, str], count: int, patience: float) -> list[str]:
    """Return a line for each host at fault, and one for those that did not come."""
    lines = [f"host {index}: {text}" for index, text in sorted(problems.items()) if text]
    if missing := sorted(set(range(count)) - set(problems)):
        names = ", ".join(f"host {index}" for index in missing)
        lines.append(f"{names} of {count} did not come within {patience:g} s")
    return lines


def _line(connection: socket.socket) -> str:
    """Return the line that the other side sends; empty if it closes."""
    with connection.makefile() as stream:
        return stream.readline()


def _report(
    host: SliceHost,
    problem: str,
    deadline: float,
    patience: float,
    port: int,
    stopped: Callable[[], bool],
) -> list[str]:
    """Report to host 0, and return its verdict."""
    message = json.dumps({"host": host.index, "problem": problem}) + "\n"
    while (left := deadline - time.monotonic()) > 0 and not stopped():
        try:
            with socket.create_connection((host.first, port), timeout=min(left, 10)) as connection:
                connection.sendall(message.encode())
                # Host 0 answers when all have come, at its own deadline at the latest.
                end = deadline + _RETRY_SECONDS * 10
                while time.monotonic() < end and not stopped():
                    if not select.select([connection], [], [], _LOOK_SECONDS)[0]:
                        continue
                    if line := _line(connection):
                        return [str(text) for text in json.loads(line)]
                    break  # host 0 closed: it stopped, or this was not host 0
        except OSError:
            time.sleep(min(_RETRY_SECONDS, max(0.0, deadline - time.monotonic())))
    return [f"host 0 of {host.count} ({host.first}) did not answer within {patience:g} s"]

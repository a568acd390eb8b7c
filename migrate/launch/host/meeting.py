"""Meeting of all hosts before each start of the program, and after its end.

All continue, or all stop with one line that names the host at fault. Host 0 listens. Each host sends its
number, its problem if it has one, and how its program ended. Host 0 answers with the verdict.

If the program ended on all hosts, the job ends. A host that comes without an end is new: a machine was
lost, which makes the program fail on the others, and all start again.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from migrate.launch.host.hosts import SliceHost

PORT = 8571
_RETRY_SECONDS = 0.5
_LOOK_SECONDS = 0.5  # time between two looks whether this host was stopped
_MESSAGE_SECONDS = 10.0


@dataclass(frozen=True)
class Report:
    """Report of a host about itself.

    Attributes:
        problem: what is wrong with it; empty: nothing.
        ended: how its program ended; empty: it is to start, or to start again.
    """

    problem: str = ""
    ended: str = ""


@dataclass(frozen=True)
class Verdict:
    """Decision for all hosts.

    Attributes:
        lines: why the job cannot continue; empty: the program starts.
        ended: whether the program ended on every host; the lines say how.
        answered: whether host 0 told this host; else it did not answer.
    """

    lines: tuple[str, ...] = ()
    ended: bool = False
    answered: bool = True


def meet(
    host: SliceHost,
    report: Report,
    patience: float,
    port: int = PORT,
    stopped: Callable[[], bool] = lambda: False,
) -> Verdict:
    """Wait for all hosts, and return what they do next.

    Args:
        host: this host.
        report: what this host says of itself.
        patience: seconds to wait for the others.
        port: port of host 0.
        stopped: whether this host no longer waits, as after SIGTERM.
    """
    if host.count == 1:
        return _verdict({0: report}, 1, patience)
    deadline = time.monotonic() + patience
    if host.index == 0:
        verdict = _receive(host, report, deadline, patience, port, stopped)
    else:
        verdict = _report(host, report, deadline, patience, port, stopped)
    return Verdict((f"host {host.index} was stopped",)) if stopped() else verdict


def _receive(
    host: SliceHost,
    report: Report,
    deadline: float,
    patience: float,
    port: int,
    stopped: Callable[[], bool],
) -> Verdict:
    """Wait for the other hosts, and send each the verdict."""
    reports = {0: report}
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("", port), backlog=host.count))
        connections = []
        while len(reports) < host.count and (left := deadline - time.monotonic()) > 0:
            if stopped():
                return Verdict()  # not sent, so that the others wait for this host's next start
            server.settimeout(min(left, _LOOK_SECONDS))
            try:
                connection = stack.enter_context(server.accept()[0])
                connection.settimeout(min(left, _MESSAGE_SECONDS))
                message = json.loads(_line(connection))
                reports[int(message["host"])] = Report(message["problem"], message["ended"])
                connections.append(connection)
            except (OSError, ValueError, KeyError):
                continue  # not a host of this job, or a host that stopped meanwhile
        verdict = _verdict(reports, host.count, patience)
        answer = json.dumps({"lines": verdict.lines, "ended": verdict.ended}) + "\n"
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.sendall(answer.encode())
    return verdict


def _verdict(reports: dict[int, Report], count: int, patience: float) -> Verdict:
    """Return a line for each host at fault, and one for those that did not come."""
    said = sorted(reports.items())
    lines = [f"host {index}: {report.problem}" for index, report in said if report.problem]
    if missing := sorted(set(range(count)) - set(reports)):
        names = ", ".join(f"host {index}" for index in missing)
        lines.append(f"{names} of {count} did not come within {patience:g} s")
    ended = not missing and all(report.ended for report in reports.values())
    if ended:
        lines += [f"host {index}: {report.ended}" for index, report in said]
    return Verdict(tuple(lines), ended)


def _line(connection: socket.socket) -> str:
    """Return the line that the other side sends; empty if it closes."""
    with connection.makefile() as stream:
        return stream.readline()


def _report(
    host: SliceHost,
    report: Report,
    deadline: float,
    patience: float,
    port: int,
    stopped: Callable[[], bool],
) -> Verdict:
    """Report to host 0, and return its verdict."""
    said = {"host": host.index, "problem": report.problem, "ended": report.ended}
    message = json.dumps(said) + "\n"
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
                        answer: dict[str, Any] = json.loads(line)
                        return Verdict(tuple(answer["lines"]), answer["ended"])
                    break  # host 0 closed: it stopped, or this was not host 0
        except OSError:
            time.sleep(min(_RETRY_SECONDS, max(0.0, deadline - time.monotonic())))
    line = f"host 0 of {host.count} ({host.first}) did not answer within {patience:g} s"
    return Verdict((line,), answered=False)

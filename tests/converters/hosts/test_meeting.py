"""Processes that meet: what all know, and how all end when one does."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from converters.errors import HostsError, MissingDependencyError
from converters.hosts import Hosts, Process, met
from converters.hosts.ports import listen
from converters.hosts.store import KeyValueStore
from tests.servers import free_port
from tests.waiting import LIMIT, until

Act = Callable[[Hosts], Any]


def together(acts: list[Act], patience: float = 20, **others: Any) -> list[Any]:
    """What each process gives or raises, all of them threads of this one."""
    port = others.get("port") or free_port()
    found: list[Any] = [None] * len(acts)

    def run(index: int) -> None:
        process = Process(index, others.get("count", len(acts)), "127.0.0.1", port)
        try:
            with met(process, patience) as hosts:
                found[index] = acts[index](hosts)
        except HostsError as error:
            found[index] = str(error)
        except ValueError as error:
            found[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(acts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
        assert not thread.is_alive()
    return found


def test_what_each_tells_all_know() -> None:
    def act(hosts: Hosts) -> Any:
        made = hosts.from_first(lambda: f"made by {hosts.process.index}")
        return made, hosts.gather(hosts.process.index * 10), hosts.gather("x")

    assert together([act] * 4) == [("made by 0", [0, 10, 20, 30], ["x"] * 4)] * 4


def test_the_port_is_free_again_after_a_meeting() -> None:
    port = free_port()
    for _ in range(3):
        assert together([lambda hosts: hosts.gather("x")] * 2, port=port) == [["x"] * 2] * 2


def test_one_alone_meets_nobody() -> None:
    with met(Process(0, 1)) as hosts:
        assert hosts.gather(3) == [3]
        assert hosts.from_first(lambda: 4) == 4
        hosts.agree({"a": "b"})


def test_where_one_fails_all_end_with_its_line() -> None:
    def fails(hosts: Hosts) -> None:
        raise ValueError

    def waits(hosts: Hosts) -> Any:
        return hosts.gather(1)

    for failing in (0, 2):
        acts: list[Act] = [waits] * 3
        acts[failing] = fails
        found = together(acts)
        assert isinstance(found.pop(failing), ValueError)
        for line in found:
            assert line.startswith(f"process {failing} of 3 failed: ValueError; start the same"), (
                line
            )


def test_who_works_learns_of_it_without_waiting() -> None:
    def fails(hosts: Hosts) -> None:
        raise ValueError

    def works(hosts: Hosts) -> None:
        until(hosts.require_all, "the failure of process 1")

    found = together([works, fails, works])
    assert found[0].startswith("process 1 of 3 failed: ValueError; ")
    assert found[2] == found[0]


@pytest.mark.parametrize("early", [0, 1])
def test_who_waits_for_one_that_has_ended(early: int) -> None:
    def ends(hosts: Hosts) -> str:
        return "done"

    def waits(hosts: Hosts) -> Any:
        return hosts.gather(1)

    acts: list[Act] = [waits, waits]
    acts[early] = ends
    found = together(acts)
    assert found.pop(early) == "done"
    line = f"process {early} of 2 ended before this one; start the same command on every host"
    assert found == [line]


def test_who_was_given_another_thing_is_named() -> None:
    def act(hosts: Hosts) -> None:
        hosts.agree({"output": "gs://b" if hosts.process.index == 1 else "gs://a", "mesh": "None"})

    line = "process 1 has another output than process 0: gs://b, not gs://a; start the same command"
    assert together([act] * 3) == [f"{line} on every host"] * 3


def test_a_silent_process_is_taken_for_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that is cut off closes no connection."""
    monkeypatch.setattr("converters.hosts.meeting.SILENT_SECONDS", 1.0)
    monkeypatch.setattr("converters.hosts.meeting._StoreHosts._beat", lambda self: None)
    released = threading.Event()

    def waits(hosts: Hosts) -> None:
        try:
            hosts.gather(1)
        finally:
            released.set()

    def silent(hosts: Hosts) -> None:
        released.wait(LIMIT)

    found = together([waits, silent])
    assert found[0].startswith("process 1 of 2 was not heard of for 1 s; start the same command")


PROCESS = """
import os, sys, time
os.environ["TORCH_CPP_LOG_LEVEL"] = "FATAL"  # as the command line has it
from converters.errors import HostsError
from converters.hosts import Process, meeting, met
meeting.SILENT_SECONDS = 3.0
try:
    with met(Process(int(sys.argv[1]), 3, "127.0.0.1", int(sys.argv[2]))) as hosts:
        print("met", flush=True)
        while True:
            hosts.require_all()
            time.sleep(0.05)
except HostsError as error:
    print(error.what, flush=True)
"""


@pytest.mark.parametrize(
    ("which", "how", "line"),
    [
        (2, signal.SIGKILL, "process 2 of 3 was not heard of for 3 s"),
        (0, signal.SIGKILL, "process 0 of 3 died"),
        (0, signal.SIGSTOP, "process 0 of 3 was not heard of for 3 s"),
    ],
)
@pytest.mark.long_cases("0-9-process 0 of 3 died", "2-9-process 2 of 3 was not heard of for 3 s")
def test_a_process_that_is_killed_or_stopped(which: int, how: signal.Signals, line: str) -> None:
    port = free_port()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(index), str(port)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path.cwd()), *sys.path])},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(3)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "met\n"
        processes[which].send_signal(how)
        for index, process in enumerate(processes):
            if index != which:
                assert process.communicate(timeout=LIMIT) == (f"{line}\n", "")
                assert process.returncode == 0
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_without_torch_they_do_not_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("converters.hosts.meeting.is_installed", lambda module: False)
    with pytest.raises(MissingDependencyError, match="a conversion by several hosts needs torch"):
        met(Process(0, 2, "127.0.0.1", free_port()), 1).__enter__()


def test_values_longer_than_a_message_of_the_store() -> None:
    text = "é" * (3 << 20)
    assert together([lambda hosts: len(hosts.gather(text)[1])] * 2) == [3 << 20] * 2


def test_process_0_that_knows_of_another_number() -> None:
    port = free_port()
    found: list[str] = []

    def run(process: Process) -> None:
        try:
            with met(process, 20):
                pass
        except HostsError as error:
            found.append(error.what)

    threads = [
        threading.Thread(target=run, args=(Process(index, index + 2, "127.0.0.1", port),))
        for index in (0, 1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert found == ["process 1 expects 3 processes, process 0 2"] * 2


def test_process_0_of_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("converters.hosts.meeting._HELLO_SECONDS", 0.5)
    port = free_port()
    process = Process(0, 2, "127.0.0.1", port)
    store = KeyValueStore(process, listen(process), 5)
    store.write("tpu-migrate 3", "2")
    with pytest.raises(HostsError, match="is not process 0 of this program in this version"):
        met(Process(1, 2, "127.0.0.1", port), 5).__enter__()


def test_those_who_do_not_come_are_named() -> None:
    found = together([lambda hosts: None] * 2, patience=0.5, count=4)
    assert found[0] == found[1]
    assert found[0].startswith(
        "process 2, 3 of 4 did not come; start the same command on every host"
    )


def test_process_0_that_does_not_answer() -> None:
    port = free_port()
    said: list[str] = []
    with (
        pytest.raises(
            HostsError, match=f"process 0 does not answer at 127.0.0.1:{port} .*; start it"
        ),
        met(Process(1, 2, "127.0.0.1", port), 0.5, said.append),
    ):
        pass
    assert said == [f"waiting for process 0 at 127.0.0.1:{port}"]


def test_two_of_one_number() -> None:
    port = free_port()
    found: list[str] = []

    def run(index: int) -> None:
        try:
            with met(Process(index, 3, "127.0.0.1", port), 20):
                pass
        except HostsError as error:
            found.append(error.what)

    threads = [threading.Thread(target=run, args=(index,)) for index in (0, 1, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert found == ["two processes say that they are 1 of 3"] * 3


def test_a_port_that_is_taken_or_answers_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("converters.hosts.store._OPEN_SECONDS", 2.0)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(HostsError, match=f"cannot listen on port {port} of"):
            met(Process(0, 2, "127.0.0.1", port), 1).__enter__()

        def answer() -> None:
            connection, _ = other.accept()
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(HostsError, match="is not process 0 of this program"):
            met(Process(1, 2, "127.0.0.1", port), 5).__enter__()
        thread.join()


def _sent(port: int, data: bytes) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), LIMIT) as connection:
            connection.sendall(data)
    except OSError:
        return False
    return True


def test_what_looks_for_open_ports_disturbs_nobody() -> None:
    port = free_port()

    def disturb() -> None:
        for data in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\0" * 8, b"\0\0\0\0\0\0\0\2[]"):
            until(partial(_sent, port, data), "an open port")

    thread = threading.Thread(target=disturb)
    thread.start()
    found: list[Any] = []

    def run(index: int) -> None:
        if index:
            thread.join()
        with met(Process(index, 2, "127.0.0.1", port), 20) as hosts:
            found.append(hosts.gather(index))

    threads = [threading.Thread(target=run, args=(index,)) for index in (0, 1)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(LIMIT)
    assert found == [[0, 1], [0, 1]]

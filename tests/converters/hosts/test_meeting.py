"""Processes that meet: who they are, who does what, what all know, and how all end when one does."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from converters.errors import HostsError
from converters.hosts import Hosts, Process, detected, met, parse_process, shares
from tests.servers import Answer, Handler, Server, free_port, running
from tests.waiting import LIMIT, until

Act = Callable[[Hosts], Any]


def together(acts: list[Act], patience: float = 20, **others: Any) -> list[Any]:
    """What each process gives or raises, all of them threads of this one."""
    port = free_port()
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
        return made, hosts.all_told(hosts.process.index * 10), hosts.all_told("x")

    assert together([act] * 4) == [("made by 0", [0, 10, 20, 30], ["x"] * 4)] * 4


def test_one_alone_meets_nobody() -> None:
    with met(Process(0, 1)) as hosts:
        assert hosts.all_told(3) == [3]
        assert hosts.from_first(lambda: 4) == 4
        hosts.agree({"a": "b"})


def test_where_one_fails_all_end_with_its_line() -> None:
    def fails(hosts: Hosts) -> None:
        raise ValueError

    def waits(hosts: Hosts) -> Any:
        return hosts.all_told(1)

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


def test_who_was_given_another_thing_is_named() -> None:
    def act(hosts: Hosts) -> None:
        hosts.agree({"output": "gs://b" if hosts.process.index == 1 else "gs://a", "mesh": "None"})

    line = "process 1 has another output than process 0: gs://b, not gs://a; start the same command"
    assert together([act] * 3) == [f"{line} on every host"] * 3


def test_a_silent_process_is_taken_for_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that is cut off closes no connection."""
    monkeypatch.setattr("converters.hosts.meeting.SILENT_SECONDS", 1.0)
    monkeypatch.setattr("converters.hosts.meeting._Together._beat", lambda self: None)
    released = threading.Event()

    def waits(hosts: Hosts) -> None:
        try:
            hosts.all_told(1)
        finally:
            released.set()

    def silent(hosts: Hosts) -> None:
        released.wait(LIMIT)

    found = together([waits, silent])
    assert found[0].startswith("process 1 of 2 was not heard of for 1 s; start the same command")


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


def test_a_port_that_is_taken_or_answers_something_else() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(HostsError, match=f"port {port} .* cannot be listened to"):
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
            found.append(hosts.all_told(index))

    threads = [threading.Thread(target=run, args=(index,)) for index in (0, 1)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(LIMIT)
    assert found == [[0, 1], [0, 1]]


@pytest.mark.parametrize(
    ("text", "coordinator", "line"),
    [
        ("3", "a:1", '"3" is not a process'),
        ("3/x", "a:1", '"3/x" is not a process'),
        ("-1/2", "a:1", '"-1/2" is not a process'),
        ("16/16", "a:1", "there is no process 16 of 16"),
        ("0/0", "a:1", "there is no process 0 of 0"),
        ("0/2", None, "--process 0/2 does not say where process 0 is"),
        ("0/2", "host", '"host" is not HOST:PORT'),
        ("0/2", "host:70000", '"host:70000" is not HOST:PORT'),
        ("0/2", "http://host:1", '"http://host:1" is not HOST:PORT'),
    ],
)
def test_what_does_not_say_which_process_it_is(
    text: str, coordinator: str | None, line: str
) -> None:
    with pytest.raises(HostsError) as raised:
        parse_process(text, coordinator)
    assert raised.value.what == line


def test_what_says_it() -> None:
    assert parse_process("3/16", "10.0.0.2:8476") == Process(3, 16, "10.0.0.2", 8476)
    assert parse_process("0/2", "[fe80::1]:99") == Process(0, 2, "fe80::1", 99)
    assert parse_process("0/1", None) == Process(0, 1)


CLUSTERS = {
    "slurm": {
        "SLURM_JOB_ID": "4711",
        "SLURM_STEP_NODELIST": "node[007-010]",
        "SLURM_NTASKS": "4",
        "SLURM_PROCID": "2",
        "SLURM_LOCALID": "0",
        "SLURM_STEP_NUM_NODES": "4",
    },
    "ompi": {
        "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911",
        "OMPI_COMM_WORLD_SIZE": "4",
        "OMPI_COMM_WORLD_RANK": "2",
        "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    },
}


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_clusters_tell_which_process_it_is(cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jax")
    for name, value in CLUSTERS[cluster].items():
        monkeypatch.setenv(name, value)
    found = detected()
    assert found is not None
    assert (found.index, found.count, found.told_by) == (2, 4, cluster)
    assert found.host == {"slurm": "node007", "ompi": "10.96.0.1"}[cluster]
    assert 61440 <= found.port < 65536


class MetadataServer(Server):
    """As the hosts of a TPU slice of Google's have one."""

    def __init__(self, **attributes: str) -> None:
        super().__init__()
        self.attributes = attributes

    def answer(self, request: Handler, body: bytes) -> Answer:
        name = request.path.rpartition("/")[2]
        return (
            (200, {}, self.attributes[name].encode()) if name in self.attributes else (404, {}, b"")
        )


DETECT = """
import os
import jax
os.environ.pop("TPU_SKIP_MDS_QUERY", None)  # jax sets it where it sees no chips
from converters.hosts import detected
print(detected())
print(detected().told_by, detected().host, detected().port)
"""


@pytest.mark.parametrize("cluster", ["gcetpu", "gketpu"])
def test_tpu_slices_tell_which_process_it_is(cluster: str) -> None:
    """In a process of its own, which jax takes for one of a host with TPUs."""
    pytest.importorskip("jax")
    known = {"tpu-env": "ACCELERATOR_TYPE: 'v5litepod-8'"}
    if cluster == "gcetpu":
        known |= {
            "agent-worker-number": "1",
            "worker-network-endpoints": "a:0:127.0.0.1,b:1:127.0.0.2",
        }
    with running(MetadataServer(**known)) as server:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(Path.cwd()), *sys.path]),
            "JAX_PLATFORMS": "cpu",
            "JAX_FORCE_TPU_INIT": "1",
            "GCE_METADATA_IP": server.url.removeprefix("http://"),
        }
        if cluster == "gketpu":
            environment |= {"TPU_WORKER_HOSTNAMES": "127.0.0.1,b", "TPU_WORKER_ID": "1"}
        found = subprocess.run(
            [sys.executable, "-c", DETECT], env=environment, capture_output=True, text=True
        )
    assert found.stdout == f"process 1 of 2\n{cluster} 127.0.0.1 8482\n", found.stderr


def test_a_cluster_of_one_process_and_one_that_does_not_tell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("jax")
    assert detected() is None
    for name, value in CLUSTERS["slurm"].items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLURM_NTASKS", "1")
    assert detected() is None
    monkeypatch.setenv("SLURM_NTASKS", "many")
    with pytest.raises(HostsError, match="slurm does not tell which process this is"):
        detected()


def held(groups: list[dict[str, int]], dealt: dict[str, int], count: int) -> list[int]:
    return [
        sum(size for group in groups for name, size in group.items() if dealt[name] == process)
        for process in range(count)
    ]


def test_shares_are_even_and_keep_together_what_belongs_together() -> None:
    groups = [{f"{array}.{part}": 100 + array for part in range(4)} for array in range(37)]
    for divisible, most in ((True, 1.05), (False, 1.1)):
        dealt = shares(groups, 4, lambda number, answer=divisible: answer)  # type: ignore[misc]
        apart = [group for group in groups if len({dealt[name] for name in group}) > 1]
        assert len(apart) == divisible
        found = held(groups, dealt, 4)
        assert max(found) <= most * sum(found) / 4


def test_an_array_larger_than_a_share_is_shared() -> None:
    groups = [{f"large.{part}": 100 for part in range(8)}, {"a": 40}, {"b": 40}]
    dealt = shares(groups, 4, lambda number: False)
    assert sorted(held(groups, dealt, 4)) == [200, 200, 240, 240]
    one = {name: 0 for group in groups for name in group}
    assert shares(groups, 1, lambda number: True) == one
    assert shares([], 3, lambda number: True) == {}

"""Which process this is: as the user says, or a cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from converters.errors import HostsError
from converters.hosts import Process, detected, parse_process
from tests.servers import Answer, Handler, Server, running


@pytest.mark.parametrize(
    ("text", "coordinator", "line"),
    [
        ("3", "a:1", '"3" is not a process'),
        ("3/x", "a:1", '"3/x" is not a process'),
        ("-1/2", "a:1", '"-1/2" is not a process'),
        ("16/16", "a:1", "there is no process 16 of 16"),
        ("0/0", "a:1", "there is no process 0 of 0"),
        ("0/2", None, "--process 0/2 needs the address of process 0"),
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
    assert (found.index, found.count, found.reported_by) == (2, 4, cluster)
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
print(detected().reported_by, detected().host, detected().port)
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

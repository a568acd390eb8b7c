import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist
from torch.distributed.rendezvous import _rendezvous_handlers

from shims import activate
from shims._shared.ports import free_port
from shims.errors import DeviceNotAnsweredError
from shims.patches.ranks import rendezvous
from tests.waiting import LIMIT

PROGRAMS = Path(__file__).parent / "programs"
# Of the block for documentation (RFC 5737): no host has it.
FAR = "192.0.2.7"


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv(activate.ONE_MACHINE, "1")
    monkeypatch.setenv("MASTER_ADDR", FAR)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    return monkeypatch


def test_the_variable_is_answered_and_put_back(launched: pytest.MonkeyPatch) -> None:
    with rendezvous.here({"world_size": 2, "rank": 0}, 2) as given:
        assert os.environ["MASTER_ADDR"] == rendezvous.LOOPBACK
        assert given == {"world_size": 2, "rank": 0}
    assert os.environ["MASTER_ADDR"] == FAR


@pytest.mark.parametrize(
    ("given", "variables", "answered"),
    [
        ({"init_method": f"tcp://{FAR}:23", "world_size": 2}, {}, "tcp://127.0.0.1:23"),
        (
            {"init_method": f"tcp://{FAR}:23?rank=1&world_size=2"},
            {},
            "tcp://127.0.0.1:23?rank=1&world_size=2",
        ),
        ({"init_method": f"tcp://{FAR}:23"}, {"WORLD_SIZE": "2"}, "tcp://127.0.0.1:23"),
        # A world of more ranks than are started here spans machines.
        ({"init_method": f"tcp://{FAR}:23", "world_size": 4}, {}, f"tcp://{FAR}:23"),
        ({"init_method": "file:///tmp/meet", "world_size": 2}, {}, "file:///tmp/meet"),
    ],
)
def test_the_host_of_a_url(
    given: dict[str, object],
    variables: dict[str, str],
    answered: str,
    launched: pytest.MonkeyPatch,
) -> None:
    for name, value in variables.items():
        launched.setenv(name, value)
    with rendezvous.here(given, 2) as reachable:
        assert reachable == {**given, "init_method": answered}


def test_two_runs_of_one_script_meet_at_ports_of_their_own(launched: pytest.MonkeyPatch) -> None:
    launched.setattr(rendezvous, "_named", [])
    launched.setenv(activate.PORT, "40001")
    launched.setenv("MASTER_PORT", "12355")
    with rendezvous.here({"world_size": 2}, 2):
        assert os.environ["MASTER_PORT"] == "40001"
    assert os.environ["MASTER_PORT"] == "12355"
    # A second group that the script makes at another port keeps it; the first has the run's again.
    for named, answered in (("23", "23"), ("12355", "40001")):
        url = f"tcp://{FAR}:{named}"
        with rendezvous.here({"init_method": url, "world_size": 2}, 2) as given:
            assert given["init_method"] == f"tcp://127.0.0.1:{answered}"


@pytest.mark.parametrize("scheme", ["env", "tcp"])
def test_a_group_that_anybody_makes_meets_at_the_port_of_the_run(
    scheme: str, launched: pytest.MonkeyPatch
) -> None:
    launched.setattr(rendezvous, "_named", [])
    for name, handler in list(_rendezvous_handlers.items()):
        launched.setitem(_rendezvous_handlers, name, handler)
    rendezvous.install(1)
    with socket.create_server(("127.0.0.1", 0)) as other_run:
        named = other_run.getsockname()[1]
        launched.setenv("MASTER_PORT", str(named))
        launched.setenv(activate.PORT, str(free_port()))
        url = "env://" if scheme == "env" else f"tcp://localhost:{named}"
        dist.init_process_group("gloo", init_method=url, rank=0, world_size=1)
        dist.destroy_process_group()
    assert os.environ["MASTER_PORT"] == str(named)


def test_another_launcher_knows_its_hosts(launched: pytest.MonkeyPatch) -> None:
    launched.delenv(activate.ONE_MACHINE)
    with rendezvous.here({"world_size": 2}, 2):
        assert os.environ["MASTER_ADDR"] == FAR


def test_a_world_of_another_size_is_refused() -> None:
    rendezvous.require_same(None, 2)
    rendezvous.require_same(2, 2)
    with pytest.raises(DeviceNotAnsweredError, match="--ranks 4"):
        rendezvous.require_same(4, 2)


@pytest.mark.parametrize(
    "place", ["cpu", pytest.param("xla", marks=[pytest.mark.xla, pytest.mark.long])]
)
@pytest.mark.long_cases("cpu")
def test_ranks_meet_here_though_the_script_names_another_host(place: str, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "shims", "--ranks=2", f"--backend={place}"]
    done = subprocess.run(
        [*command, str(PROGRAMS / "far_rendezvous.py"), str(port)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines.count("rank 0 has 3.0") == lines.count("rank 1 has 3.0") == 2


EARLY = """
import os

import torch.distributed as dist
import torch_xla
import torch_xla.distributed.xla_backend  # registers the rendezvous before the replicas start


def main(index):
    dist.init_process_group("xla", init_method="xla://")
    print("joined", dist.get_world_size(), os.environ.get("MASTER_PORT"))


if __name__ == "__main__":
    torch_xla.launch(main)
"""


@pytest.mark.xla
@pytest.mark.long
def test_replicas_meet_at_a_port_of_their_own_though_the_backend_was_imported_before(
    tmp_path: Path,
) -> None:
    script = tmp_path / "early.py"
    script.write_text(EARLY)
    with socket.socket() as taken:
        # The port that torch_xla takes where the environment names none.
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(("127.0.0.1", 12355))
            taken.listen()
        except OSError:
            pass  # another program has it: as well
        command = [sys.executable, "-m", "migrate", "run", str(script), "--replicas", "2"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.stdout.count("joined 2 None") == 2, done.stdout + done.stderr

"""Parts of the program that runs on each host: its number, the meeting, copies from and to the bucket."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from migrate.launch.host import __main__ as main
from migrate.launch.host.bucket import Mirror, Pushing, exists, pull, write_text
from migrate.launch.host.hosts import SliceHost, UnknownHostError, this_host
from migrate.launch.host.meeting import Report, Verdict, meet
from migrate.launch.host.settings import HostSettings, read_settings
from migrate.launch.host.training import HostTraining
from tests.launch.jobs import written
from tests.launch.started import free_port
from tests.waiting import LIMIT, until

FIRST = SliceHost(0, ("localhost",) * 3)


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


class _Metadata(BaseHTTPRequestHandler):
    ANSWERS: ClassVar = {
        "agent-worker-number": "2",
        "worker-network-endpoints": "a:b:10.0.0.1,a:b:10.0.0.2,a:b:10.0.0.3",
    }

    def do_GET(self) -> None:
        assert self.headers["Metadata-Flavor"] == "Google"
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.ANSWERS[self.path.rpartition("/")[2]].encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def metadata() -> Iterator[dict[str, str]]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Metadata) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield {"GCE_METADATA_HOST": f"127.0.0.1:{server.server_port}"}
        server.shutdown()


class TestNumber:
    SKYPILOT: ClassVar = {
        "SKYPILOT_NODE_RANK": "2",
        "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2\n10.0.0.3",
    }
    GKE: ClassVar = {"TPU_WORKER_ID": "2", "TPU_WORKER_HOSTNAMES": "10.0.0.1,10.0.0.2,10.0.0.3"}
    EXPECTED = SliceHost(2, ("10.0.0.1", "10.0.0.2", "10.0.0.3"))

    @pytest.mark.parametrize(
        ("launcher", "variables"), [("skypilot", SKYPILOT), ("gke", GKE), ("xpk", GKE)]
    )
    def test_from_variables(self, launcher: str, variables: dict[str, str]) -> None:
        assert this_host(launcher, 3, variables) == self.EXPECTED

    @pytest.mark.parametrize("launcher", ["gcloud", "jobman"])
    def test_from_the_metadata_server(self, launcher: str, metadata: dict[str, str]) -> None:
        assert this_host(launcher, 3, metadata) == self.EXPECTED

    def test_of_a_single_host(self) -> None:
        assert this_host("dstack", 1, {}) == SliceHost(0, ("localhost",))

    @pytest.mark.parametrize(
        ("count", "variables", "said"),
        [
            (3, {}, "skypilot did not set SKYPILOT_NODE_RANK, and 3 hosts need it"),
            (4, SKYPILOT, "names 3 hosts and gives this one number 2; the slice has 4"),
            (3, SKYPILOT | {"SKYPILOT_NODE_RANK": "3"}, "gives this one number 3"),
        ],
    )
    def test_that_is_wrong(self, count: int, variables: dict[str, str], said: str) -> None:
        with pytest.raises(UnknownHostError, match=said):
            this_host("skypilot", count, variables)

    def test_without_a_metadata_server(self) -> None:
        closed = {"GCE_METADATA_HOST": f"127.0.0.1:{free_port()}"}
        with pytest.raises(UnknownHostError, match="metadata server does not answer"):
            this_host("gcloud", 3, closed)


class TestMeeting:
    def meeting(self, reports: dict[int, Report], patience: float) -> dict[int, Verdict]:
        port = int(free_port())
        verdicts: dict[int, Verdict] = {}

        def come(index: int) -> None:
            verdicts[index] = meet(
                SliceHost(index, ("localhost",) * 3), reports[index], patience, port
            )

        threads = [threading.Thread(target=come, args=(index,)) for index in reports]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return verdicts

    def test_of_sound_hosts(self) -> None:
        verdicts = self.meeting({0: Report(), 1: Report(), 2: Report()}, 30)
        assert verdicts == {host: Verdict() for host in range(3)}

    def test_names_the_host_at_fault_to_all(self) -> None:
        verdicts = self.meeting({0: Report(), 1: Report("chip 3 differs"), 2: Report()}, 30)
        assert verdicts == {host: Verdict(("host 1: chip 3 differs",)) for host in range(3)}

    def test_names_a_missing_host_within_the_limit(self) -> None:
        verdicts = self.meeting({0: Report(), 2: Report(ended="exit code 1")}, 1.5)
        line = "host 1 of 3 did not come within 1.5 s"
        assert verdicts == {host: Verdict((line,)) for host in (0, 2)}

    def test_a_program_that_ended_on_all_hosts_ends(self) -> None:
        reports = {host: Report(ended=f"exit code {host}") for host in range(3)}
        lines = tuple(f"host {host}: exit code {host}" for host in range(3))
        assert self.meeting(reports, 30) == {host: Verdict(lines, ended=True) for host in range(3)}

    def test_where_a_host_is_new_all_start_again(self) -> None:
        reports = {0: Report(ended="exit code 1"), 1: Report(), 2: Report(ended="exit code 1")}
        assert self.meeting(reports, 30) == {host: Verdict() for host in range(3)}

    @pytest.mark.parametrize("index", [0, 1])
    def test_a_host_that_is_stopped_no_longer_waits(self, index: int) -> None:
        stop = threading.Event()
        verdict: list[str] = []

        def come() -> None:
            host = SliceHost(index, ("localhost",) * 2)
            verdict.extend(meet(host, Report(), 10 * LIMIT, int(free_port()), stop.is_set).lines)

        waiting = threading.Thread(target=come)
        waiting.start()
        stop.set()
        waiting.join(LIMIT)
        assert verdict == [f"host {index} was stopped"]

    def test_a_host_that_waits_for_the_answer_can_be_stopped(self) -> None:
        """Host 0 has its report, and does not answer, as another host does not come."""
        stop = threading.Event()
        verdict: list[str] = []
        with socket.create_server(("", 0)) as server:
            port = server.getsockname()[1]

            def come() -> None:
                host = SliceHost(1, ("localhost",) * 3)
                verdict.extend(meet(host, Report(), 10 * LIMIT, port, stop.is_set).lines)

            waiting = threading.Thread(target=come)
            waiting.start()
            with server.accept()[0] as connection:
                assert connection.recv(100)
                stop.set()
                waiting.join(LIMIT)
        assert verdict == ["host 1 was stopped"]

    def test_of_one_host_needs_no_network(self) -> None:
        alone = SliceHost(0, ("localhost",))
        assert meet(alone, Report(), 1) == Verdict()
        assert meet(alone, Report("bad chip"), 1) == Verdict(("host 0: bad chip",))


@pytest.mark.parametrize(
    ("program", "answers", "done_at", "code"),
    [
        (0, [False, False, False], 3, 0),  # host 0 still copied
        (0, [False, False, False, False], 0, 75),  # host 0 is lost: this host comes back, too
        (0, [True], 0, 75),
        (9, [False], 0, 75),
    ],
)
def test_a_host_that_ended_well_waits_while_host_0_still_copies(
    program: int,
    answers: list[bool],
    done_at: int,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = written(tmp_path, "skypilot", "jax", tpu="v5e-8").folder / "job.json"
    trial = {"JOB_TRIAL": "1", "JOB_HOST": "1", "JOB_ADDRESSES": "localhost,localhost"}
    here = {"JOB_BUCKET": str(tmp_path / "bucket"), "JOB_WORK": str(tmp_path / "work")}
    for name, value in (trial | here | {"JOB_SKIP_DOCTOR": "1"}).items():
        monkeypatch.setenv(name, value)
    meetings: list[Verdict] = []

    def meeting(*_: object) -> Verdict:
        if not meetings:
            meetings.append(Verdict())
            return meetings[-1]
        answered = answers[len(meetings) - 1]
        meetings.append(Verdict(("host 0 of 2 did not answer within 1 s",), answered=answered))
        if done_at == len(meetings) - 1:
            write_text(f"{tmp_path / 'bucket'}/done", "0\n")
        return meetings[-1]

    monkeypatch.setattr(main, "meet", meeting)
    monkeypatch.setattr(HostTraining, "run", lambda *_: program)
    assert main.main([str(path)]) == code
    assert len(meetings) == 1 + len(answers)


class TestBucket:
    def test_what_is_pushed_is_pulled(self, tmp_path: Path) -> None:
        local, remote = tmp_path / "cache", str(tmp_path / "bucket" / "cache")
        (local / "a").mkdir(parents=True)
        (local / "a" / "x").write_text("1")
        Mirror(local, remote).push(final=True)
        assert pull(remote, tmp_path / "other") == 1
        assert (tmp_path / "other" / "a" / "x").read_text() == "1"
        assert pull(str(tmp_path / "nothing"), tmp_path / "empty") == 0

    def test_a_file_that_is_being_written_waits_for_the_next_look(self, tmp_path: Path) -> None:
        local, remote = tmp_path / "cache", tmp_path / "bucket"
        local.mkdir()
        mirror = Mirror(local, str(remote))
        (local / "x").write_text("half")
        mirror.push()
        assert not (remote / "x").exists()
        (local / "x").write_text("half and half")
        mirror.push()
        assert not (remote / "x").exists()
        mirror.push()
        assert (remote / "x").read_text() == "half and half"

    def test_an_unchanged_file_is_copied_once(self, tmp_path: Path) -> None:
        local, remote = tmp_path / "cache", tmp_path / "bucket"
        local.mkdir()
        (local / "x").write_text("1")
        mirror = Mirror(local, str(remote))
        mirror.push(final=True)
        os.remove(remote / "x")
        mirror.push(final=True)
        assert not (remote / "x").exists()

    def test_a_bucket_that_fails_does_not_end_the_training(self, tmp_path: Path) -> None:
        local = tmp_path / "cache"
        local.mkdir()
        (local / "x").write_text("1")
        (tmp_path / "file").write_text("")
        reported: list[str] = []
        mirror = Mirror(local, str(tmp_path / "file" / "below"))
        with Pushing([mirror], reported.append, seconds=0.01) as pushing:
            until(lambda: reported, "a failed copy")
        assert "cache was not copied to the bucket" in pushing.problem
        assert reported == [pushing.problem], "once, and while the program runs"

    def test_a_program_whose_last_checkpoint_is_not_copied_is_not_done(
        self, tmp_path: Path
    ) -> None:
        bucket, program = tmp_path / "bucket", tmp_path / "program"
        program.mkdir()
        (program / "train.py").write_text(
            "import os, pathlib, sys\n"
            "pathlib.Path(os.environ['CHECKPOINTS'], 'last').write_text('1')\n"
            "pathlib.Path(sys.argv[1]).write_text('no folder')\n"
        )
        values = {
            "launcher": "gcloud",
            "framework": "jax",
            "processes": "host",
            "option": "",
            "data": "",
        }
        settings = HostSettings(
            name="job",
            entry="train.py",
            args=(str(bucket / "checkpoints"),),
            hosts=1,
            chips=1,
            ranks=1,
            topology="1,1,1",
            bucket=str(bucket),
            copies=True,
            environment={},
            patience=1.0,
            **values,
        )
        (tmp_path / "job.json").write_text(settings.as_json())
        bucket.mkdir()
        trial = {"JOB_TRIAL": "1", "JOB_SKIP_DOCTOR": "1", "JOB_WORK": str(tmp_path / "work")}
        done = subprocess.run(
            [sys.executable, "-m", "migrate.launch.host", str(tmp_path / "job.json")],
            env={**os.environ, **trial},
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT,
        )
        assert done.returncode == 1, done.stderr
        assert "checkpoints was not copied to the bucket" in done.stdout
        assert not (bucket / "done").exists()

    def test_marks(self, tmp_path: Path) -> None:
        mark = str(tmp_path / "bucket" / "done")
        assert not exists(mark)
        write_text(mark, "0\n")
        assert exists(mark)


class TestSettings:
    def test_a_trial_has_the_hosts_that_its_addresses_name(self, tmp_path: Path) -> None:
        path = written(tmp_path).folder / "job.json"
        assert read_settings(path, {}).hosts == 4
        trial = {"JOB_TRIAL": "2", "JOB_ADDRESSES": "localhost", "JOB_BUCKET": "/tmp/x/"}
        settings = read_settings(path, trial)
        assert (settings.hosts, settings.bucket) == (1, "/tmp/x")

    @pytest.mark.parametrize(
        ("framework", "words"),
        [
            ("torch_xla", "-u xla_script.py --run gs://lab-runs/exp-1/checkpoints"),
            ("jax", "-u train.py --run gs://lab-runs/exp-1/checkpoints"),
            (
                "torch_tpu",
                "-u -m torch.distributed.run --nnodes=4 --node-rank=3 --nproc-per-node=4 "
                "--master-addr=a --master-port=8572 -- tpu_script.py "
                "--run gs://lab-runs/exp-1/checkpoints",
            ),
        ],
    )
    def test_the_command_of_a_program(self, framework: str, words: str, tmp_path: Path) -> None:
        settings = read_settings(written(tmp_path, "gke", framework).folder / "job.json", {})
        training = HostTraining(settings, SliceHost(3, ("a",) * 4), tmp_path, {})
        assert " ".join(training.command()[1:]) == words

    def test_the_variables_of_a_program(self, tmp_path: Path) -> None:
        settings = read_settings(written(tmp_path, environment=("A=1",)).folder / "job.json", {})
        variables = HostTraining(
            settings, SliceHost(3, ("a",) * 4), tmp_path, {"B": "2"}
        ).variables()
        assert variables == {
            "A": "1",
            "B": "2",
            "CHECKPOINTS": "gs://lab-runs/exp-1/checkpoints",
            "COORDINATOR_ADDRESS": "a:8572",
            "DATA": "",
            "HOST_COUNT": "4",
            "HOST_INDEX": "3",
            "PJRT_DEVICE": "TPU",
            "XLA_PERSISTENT_CACHE_PATH": str(tmp_path / "cache"),
        }


class TestSliceOfTorchTpu:
    def variables(self, tmp_path: Path, tpu: str, zone: str, host: SliceHost) -> dict[str, str]:
        path = written(tmp_path, "gke", "torch_tpu", tpu=tpu, zone=zone).folder / "job.json"
        return HostTraining(read_settings(path, {}), host, tmp_path, {}).variables()

    def test_over_several_hosts(self, tmp_path: Path) -> None:
        host = SliceHost(2, ("a", "b", "c", "d"))
        variables = self.variables(tmp_path, "v6e-16", "us-east1-d", host)
        addresses = variables["TORCH_TPU_SLICEBUILDER_ADDRESSES"].split(",")
        assert addresses == [f"{name}:{8070 + rank}" for name in "abcd" for rank in range(4)]
        assert variables["TORCH_TPU_TOPOLOGY"] == "4,4,1"
        names = ("NODE_RANK", "NNODES", "MASTER_ADDR", "MASTER_PORT", "TPU_WORKER_HOSTNAMES")
        assert [variables[name] for name in names] == ["2", "4", "a", "8572", "a,b,c,d"]

    @pytest.mark.parametrize(
        ("tpu", "zone", "topology", "ranks"),
        [  # as torch_tpu's own tables have them, by the number of ranks of a host
            ("v5e-8", "us-central1-a", "2,4,1", 8),
            ("v4-8", "us-central2-b", "2,2,1", 4),
            ("tpu7x-8", "us-central1-c", "2,2,1,2", 8),
        ],
    )
    def test_of_one_host(
        self, tpu: str, zone: str, topology: str, ranks: int, tmp_path: Path
    ) -> None:
        variables = self.variables(tmp_path, tpu, zone, SliceHost(0, ("localhost",)))
        assert variables["TORCH_TPU_TOPOLOGY"] == topology
        assert len(variables["TORCH_TPU_SLICEBUILDER_ADDRESSES"].split(",")) == ranks

    def test_a_program_that_spawns_gets_the_name_of_its_host(self, tmp_path: Path) -> None:
        """torch_tpu takes one host of an indexed Job for several, and asks for their names."""
        path = written(tmp_path, "xpk", "torch_tpu", tpu="v5e-8").folder / "job.json"
        settings = replace(read_settings(path, {}), processes="host")
        host = SliceHost(0, ("localhost",))
        variables = HostTraining(settings, host, tmp_path, {}).variables()
        assert variables["TPU_WORKER_HOSTNAMES"] == "localhost"
        assert "TORCH_TPU_TOPOLOGY" not in variables


def test_a_rank_gets_its_number_as_an_option(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys, beside\nprint(sys.argv, __name__)\n")
    (tmp_path / "beside.py").write_text("")
    module = [sys.executable, "-m", "migrate.launch.host.rank_option"]
    done = subprocess.run(
        [*module, "--local_rank", "train.py", "--epochs", "2"],
        cwd=tmp_path,
        env={**os.environ, "LOCAL_RANK": "3"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "['train.py', '--local_rank=3', '--epochs', '2'] __main__\n"


def test_a_trial_writes_into_no_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, tpu="v5e-8").folder / "job.json"
    monkeypatch.setenv("JOB_TRIAL", "2")
    assert main.main([str(path)]) == 3
    assert "a trial would write into gs://lab-runs/exp-1; name a folder: JOB_BUCKET=" in (
        capsys.readouterr().err
    )


class TestDiagnosis:
    @pytest.mark.parametrize("chips", [4, 3])
    def test_of_a_host_at_fault_is_one_line(
        self, chips: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[list[str]] = []

        def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
            asked.append(command[3:])
            bad = "--devices" in command
            text = "ok matmul\nFAIL matmul bfloat16: chip 3 differs\n" if bad else "fine\n"
            return subprocess.CompletedProcess(command, int(bad), text, "")

        monkeypatch.setattr(subprocess, "run", run)
        monkeypatch.setattr(main, "tpu_device_files", lambda: [Path("/dev/accel0")] * chips)
        settings = read_settings(written(tmp_path).folder / "job.json", {})
        line = main._diagnose(settings, SliceHost(1, ("a",) * 4))
        if chips < 4:
            assert line.startswith("3 of 4 chips are visible")
            return
        assert line == "migrate doctor --devices: FAIL matmul bfloat16: chip 3 differs"
        assert asked == [["doctor", "gs://lab-runs/exp-1"], ["doctor", "--devices"]]

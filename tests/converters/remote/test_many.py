"""Several processes that share one conversion: each reads and writes a part, and all end together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from converters import convert
from converters.errors import ConversionError, HostsError
from converters.hosts import Process, met
from tests.converters.remote.test_outputs import objects
from tests.converters.remote.test_sources import put
from tests.servers import BucketProxy, FileServer, free_port, running
from tests.waiting import LIMIT, until

pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")

SPEC = "kernel: [data, model]\ndefault: []\n"
OPTIONS: dict[str, Any] = {
    "assume": ["layers.*=Linear"],
    "format": "orbax",
    "mesh": "data=2,model=4",
}


def weights(layers: int, rows: int, columns: int) -> dict[str, np.ndarray[Any, Any]]:
    random = np.random.default_rng(11)
    made = {
        f"layers.{index}.weight": random.standard_normal((rows, columns), np.float32)
        for index in range(layers)
    }
    return made | {
        f"layers.{index}.bias": np.ones(rows, np.float32) * index for index in range(layers)
    }


@pytest.fixture
def net(tmp_path: Path) -> Path:
    save_file(weights(6, 160, 80), tmp_path / "net.safetensors")
    (tmp_path / "rules.yaml").write_text(SPEC)
    return tmp_path


def together(count: int, **options: Any) -> list[Any]:
    """What each process's conversion gives or raises, all of them threads of this one."""
    port = free_port()
    found: list[Any] = [None] * count
    differing = options.pop("differing", {})

    def run(index: int) -> None:
        mine = {**OPTIONS, **options, **differing.get(index, {})}
        try:
            with met(Process(index, count, "127.0.0.1", port), 60) as hosts:
                found[index] = convert(mine.pop("checkpoint"), hosts=hosts, **mine)
        except ConversionError as error:
            found[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
        assert not thread.is_alive()
    return found


@pytest.mark.parametrize(
    "form",
    [{}, {"format": "safetensors", "shard_bytes": 60_000, "mesh": None, "spec": None}],
    ids=["orbax", "shards"],
)
def test_the_checkpoint_is_that_of_one_process(
    form: dict[str, Any], net: Path, gs: BucketProxy
) -> None:
    options = {"checkpoint": net / "net.safetensors", "spec": net / "rules.yaml", **form}
    one = convert(
        options["checkpoint"],
        output="gs://bkt/run/out",
        **{**OPTIONS, **{key: value for key, value in options.items() if key != "checkpoint"}},
    )
    expected = objects()
    found = together(3, output="gs://bkt/many/out", **options)
    assert {
        path.replace("/many/", "/run/"): data for path, data in objects("bkt/many").items()
    } == {path: data for path, data in expected.items() if path.startswith("bkt/run/")}
    for index, done in enumerate(found):
        assert done.written.leaves == one.written.leaves
        assert f"written together; this was process {index} of 3" in done.notes


def test_each_writes_a_share_and_reads_what_that_needs(net: Path, gs: BucketProxy) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(running(FileServer()))
        assert isinstance(server, FileServer)
        data = (net / "net.safetensors").read_bytes()
        server.put("/net.safetensors", data)
        found = together(
            2,
            checkpoint=f"{server.url}/net.safetensors",
            output="gs://bkt/run/out",
            spec=net / "rules.yaml",
        )
        assert [type(done).__name__ for done in found] == ["Conversion"] * 2
        asked = server.bytes_asked("/net.safetensors")
    # Each reads the header, and both together every other byte once.
    heads = [span for span in asked if span[0] == 0]
    assert len(heads) == 2
    rest = [span for span in asked if span[0] > 0]
    assert len(rest) == len(set(rest))
    assert sum(end - start for start, end in rest) <= len(data) - heads[0][1]


def test_an_array_larger_than_a_share_is_read_in_parts(net: Path, gs: BucketProxy) -> None:
    """Its chunks are rows of the tensor: each process reads those of its own."""
    state = {"layers.0.weight": np.arange(4096 * 256, dtype=np.float32).reshape(4096, 256)}
    save_file(state, net / "large.safetensors")
    (net / "rules.yaml").write_text("kernel: [null, model]\n")
    with running(FileServer()) as server:
        assert isinstance(server, FileServer)
        server.put("/large.safetensors", (net / "large.safetensors").read_bytes())
        found = together(
            2,
            checkpoint=f"{server.url}/large.safetensors",
            output="gs://bkt/run/out",
            spec=net / "rules.yaml",
        )
        assert [type(done).__name__ for done in found] == ["Conversion"] * 2
        asked = server.bytes_asked("/large.safetensors")
    assert sum(end - start for start, end in asked) < 1.1 * state["layers.0.weight"].nbytes
    one = convert(net / "large.safetensors", output=net / "out", spec=net / "rules.yaml", **OPTIONS)
    for path in Path(str(one.output)).rglob("*.*"):
        if path.is_file():
            assert (
                objects()[f"bkt/run/out/{path.relative_to(str(one.output))}"] == path.read_bytes()
            )


def test_what_one_was_given_otherwise_is_named(net: Path, gs: BucketProxy) -> None:
    options = {
        "checkpoint": net / "net.safetensors",
        "output": "gs://bkt/run/out",
        "spec": net / "rules.yaml",
    }
    other = net / "other"
    other.mkdir()
    changed = load_file(net / "net.safetensors")
    save_file(changed, other / "net.safetensors")
    (other / "rules.yaml").write_text(SPEC.replace("[data, model]", "[model, data]"))
    for differing, line in (
        (
            {"output": "gs://bkt/run/b"},
            "process 1 has another output than process 0: gs://bkt/run/b,",
        ),
        ({"resume": True}, "process 1 has another way to treat an older output than process 0: "),
        (
            {"checkpoint": other / "net.safetensors"},
            "process 1 has another checkpoint than process 0: ",
        ),
        (
            {"spec": other / "rules.yaml"},
            "process 1 has another checkpoint, or other options than ",
        ),
    ):
        found = together(2, differing={1: differing}, **options)
        assert all(isinstance(error, HostsError) for error in found), found
        assert [error.what[: len(line)] for error in found] == [line] * 2
    assert objects() == {}


def test_where_one_fails_nothing_looks_complete(
    net: Path, gs: BucketProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    from converters.output.far_partial import FarPartial

    told = FarPartial.combined

    def fails(self: FarPartial, *found: Any) -> Any:
        if self._hosts.process.index == 1:
            raise HostsError("the disk of host 1 is full", "free some")
        return told(self, *found)

    options = {
        "checkpoint": net / "net.safetensors",
        "output": "gs://bkt/run/out",
        "spec": net / "rules.yaml",
    }
    with monkeypatch.context() as patch:
        patch.setattr(FarPartial, "combined", fails)
        found = together(3, **options)
    for index in (0, 2):
        assert found[index].what == "process 1 of 3 failed: the disk of host 1 is full"
        assert found[index].remedy.endswith("with --resume")
    left = objects()
    assert not any(path.endswith(("_METADATA", "commit_success.txt")) for path in left)
    gs.requests.clear()
    done = together(2, resume=True, **options)  # as many as there are now
    assert done[0].written.resumed > 0  # how far the others had come when one failed is theirs
    one = convert(net / "net.safetensors", output=net / "out", spec=net / "rules.yaml", **OPTIONS)
    assert done[0].written.leaves == done[1].written.leaves == one.written.leaves
    assert not any(".partial" in path for path in objects())


@pytest.mark.parametrize(
    ("output", "more", "line"),
    [
        ("out", {}, "out is a path, and several processes write to a bucket together"),
        (
            "gs://bkt/run/out.msgpack",
            {"format": "msgpack"},
            "gs://bkt/run/out.msgpack would be one",
        ),
        ("gs://bkt/run/out.safetensors", {"format": None}, "gs://bkt/run/out.safetensors would be"),
    ],
)
def test_what_several_processes_cannot_write(
    output: str, more: dict[str, Any], line: str, net: Path, gs: BucketProxy
) -> None:
    found = together(
        2,
        checkpoint=net / "net.safetensors",
        output=output,
        **{"mesh": None, "spec": None, **more},
    )
    assert [error.what[: len(line)] for error in found] == [line] * 2


def test_an_older_output_is_found_by_process_0(net: Path, gs: BucketProxy) -> None:
    options = {
        "checkpoint": net / "net.safetensors",
        "output": "gs://bkt/run/out",
        "spec": net / "rules.yaml",
    }
    together(2, **options)
    before = objects()
    found = together(2, **options)
    assert found[0].what == "gs://bkt/run/out exists already"
    assert found[1].what == "process 0 of 2 failed: gs://bkt/run/out exists already"
    assert objects() == before
    assert together(2, overwrite=True, **options)[1].written.nbytes
    assert objects() == before


@pytest.fixture
def proxies(gs: BucketProxy) -> Iterator[list[BucketProxy]]:
    """A way to the bucket for each of four processes, which hears what that one asks."""
    with ExitStack() as stack:
        made = [stack.enter_context(running(BucketProxy(gs.emulator.geturl()))) for _ in range(4)]
        yield [proxy for proxy in made if isinstance(proxy, BucketProxy)]


def command(
    index: int, count: int, port: int, proxy: BucketProxy, net: Path, *words: str
) -> subprocess.Popen[str]:
    run = "from migrate.cli import main; main()"
    given = [
        *(sys.executable, "-c", run, "weights", "gs://bkt/run/net.safetensors"),
        *("--assume", "layers.*=Linear", "--format", "orbax", "-o", "gs://bkt/run/out"),
        *("--mesh", "data=2,model=4", "--spec", str(net / "rules.yaml")),
        *("--process", f"{index}/{count}", "--coordinator", f"127.0.0.1:{port}", *words),
    ]
    return subprocess.Popen(
        given,
        cwd=net,
        env={**os.environ, "STORAGE_EMULATOR_HOST": proxy.url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _is_at_work(process: subprocess.Popen[str], proxy: BucketProxy) -> bool:
    asked = [path for method, path, _ in list(proxy.requests) if method == "POST"]
    return process.poll() is not None or sum("upload" in path for path in asked) > 6


@pytest.mark.long
def test_four_processes_one_is_killed_and_all_start_again(
    net: Path, proxies: list[BucketProxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path.cwd()), *sys.path]))
    state = weights(16, 768, 1024)
    save_file(state, net / "net.safetensors")
    data = (net / "net.safetensors").read_bytes()
    put({"net.safetensors": data})
    local = convert(net / "net.safetensors", output=net / "out", spec=net / "rules.yaml", **OPTIONS)
    for killed in (2, 0):
        port = free_port()
        processes = [command(index, 4, port, proxy, net) for index, proxy in enumerate(proxies)]

        until(partial(_is_at_work, processes[killed], proxies[killed]), "the objects")
        processes[killed].send_signal(signal.SIGKILL)
        said = [process.communicate(timeout=LIMIT) for process in processes]
        assert "bkt/run/out/commit_success.txt" not in objects()
        # Only where process 0 dies are there connections that break: its store tells nobody of others.
        gone = "was not heard of for 25 s" if killed else "died"
        for index, process in enumerate(processes):
            if index != killed:
                assert process.returncode == 2
                lines = [line for line in said[index][1].splitlines() if not line.startswith("…")]
                assert lines == [
                    f"migrate: process {killed} of 4 {gone}; start the same command on every host again, "
                    "with --resume"
                ]
        for proxy in proxies:
            proxy.requests.clear()
    port = free_port()
    processes = [
        command(index, 4, port, proxy, net, "--resume") for index, proxy in enumerate(proxies)
    ]
    for process in processes:
        assert process.communicate(timeout=LIMIT)
        assert process.returncode == 0
    found = objects("bkt/run/out")
    for path in Path(str(local.output)).rglob("*"):
        if path.is_file():
            name = path.relative_to(str(local.output))
            assert found[f"bkt/run/out/{name}"] == path.read_bytes()


@pytest.mark.long
def test_each_of_four_reads_its_share(
    net: Path, proxies: list[BucketProxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path.cwd()), *sys.path]))
    save_file(weights(16, 768, 1024), net / "net.safetensors")
    data = (net / "net.safetensors").read_bytes()
    put({"net.safetensors": data})
    port = free_port()
    processes = [command(index, 4, port, proxy, net) for index, proxy in enumerate(proxies)]
    for process in processes:
        assert process.communicate(timeout=LIMIT)
        assert process.returncode == 0
    name = "/download/storage/v1/b/bkt/o/run/net.safetensors"
    read = [sum(end - start for start, end in proxy.bytes_asked(name)) for proxy in proxies]
    assert max(read) <= 1.1 * len(data) / 4, [count / (len(data) / 4) for count in read]


def test_words_that_cannot_be() -> None:
    from click.testing import CliRunner

    from migrate.cli import commands

    for words, line in (
        (["--process", "3"], 'migrate: "3" is not a process; '),
        (["--process", "16/16"], "migrate: there is no process 16 of 16; "),
        (["--process", "3/16"], "migrate: --process 3/16 needs the address of process 0; "),
        (["--process", "3/16", "--coordinator", "x"], 'migrate: "x" is not HOST:PORT; '),
        (
            ["--coordinator", "host:1"],
            "migrate: --coordinator needs the number of this process: add --process",
        ),
        (
            ["--process", "1/2", "--coordinator", f"127.0.0.1:{free_port()}", "--wait", "0.3"],
            "migrate: process 0 does not answer at 127.0.0.1:",
        ),
    ):
        result = CliRunner().invoke(commands, ["weights", "gs://bkt/run/net.safetensors", *words])
        assert result.exit_code == 2
        lines = [line for line in result.stderr.splitlines() if not line.startswith("…")]
        assert lines[0].startswith(line), lines

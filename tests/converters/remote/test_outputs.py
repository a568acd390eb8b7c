"""Outputs in buckets: the bytes of local ones, whole or not there, resumed object by object."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from converters import convert
from converters.errors import NotFiniteError, OutputError, RemoteError
from converters.remote.buckets import filesystem
from tests.converters.conftest import Refused
from tests.converters.remote.test_sources import put
from tests.servers import BucketProxy, Faults, HubServer
from tests.waiting import until

pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")

NET = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(*(nn.Linear(300 + i, 301 + i) for i in range(6)), nn.BatchNorm1d(306))
"""


@pytest.fixture
def net(tmp_path: Path) -> Path:
    """A folder with net.py and net.safetensors."""
    (tmp_path / "net.py").write_text(NET)
    torch.manual_seed(3)
    layers = [torch.nn.Linear(300 + i, 301 + i) for i in range(6)]
    model = torch.nn.Sequential(*layers, torch.nn.BatchNorm1d(306))
    save_file(model.state_dict(), tmp_path / "net.safetensors")
    return tmp_path


def objects(prefix: str = "bkt") -> dict[str, bytes]:
    fs = filesystem("gs", "gs://bkt", "the bucket")
    return {path: fs.cat_file(path) for path in sorted(fs.find(prefix))}


def converted(net: Path, output: str | Path, **options: Any) -> Any:
    options.setdefault("model", f"{net / 'net.py'}:Net")
    return convert(options.pop("checkpoint", net / "net.safetensors"), output=output, **options)


FORMS: list[tuple[str, dict[str, Any]]] = [
    ("out.safetensors", {}),
    ("out.msgpack", {}),
    ("out", {"format": "orbax"}),
    ("out", {"shard_bytes": 800_000}),
]


@pytest.mark.parametrize(
    ("name", "options"), FORMS, ids=["safetensors", "msgpack", "orbax", "shards"]
)
def test_the_objects_are_the_files(
    name: str, options: dict[str, Any], net: Path, gs: BucketProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("converters.output.far_partial.PART_BYTES", 1 << 18)
    local = converted(net, net / name, **options)
    far = converted(net, f"gs://bkt/run/{name}", **options)
    assert str(far.output) == f"gs://bkt/run/{name}"
    assert far.written.leaves == local.written.leaves
    root = net / name
    files = [root] if root.is_file() else [path for path in root.rglob("*") if path.is_file()]
    expected = {f"bkt/run/{path.relative_to(net)}": path.read_bytes() for path in files}
    kept = net / "out.torch.safetensors"
    expected["bkt/run/out.torch.safetensors"] = kept.read_bytes()
    if options.get("format") == "orbax":
        expected["bkt/run/out/commit_success.txt"] = b"written by tpu-migrate\n"
    found = objects()
    assert found == expected


def test_orbax_reads_it(net: Path, gs: BucketProxy) -> None:
    from orbax import checkpoint as orbax

    converted(net, "gs://bkt/run/params", format="orbax")
    tree = orbax.PyTreeCheckpointer().restore("gs://bkt/run/params")
    from safetensors.numpy import load_file

    weights = load_file(net / "net.safetensors")
    kernel = tree["params"]["layers_3"]["kernel"]
    assert np.array_equal(np.asarray(kernel), weights["3.weight"].T)


def test_from_a_hub_to_a_bucket(net: Path, hub: HubServer, gs: BucketProxy) -> None:
    data = (net / "net.safetensors").read_bytes()
    commit = hub.commit("org/name", {"model.safetensors": data})
    local = converted(net, net / "out.safetensors")
    done = converted(net, "gs://bkt/run/out.safetensors", checkpoint="org/name")
    found = objects()
    assert found["bkt/run/out.safetensors"] == local.output.read_bytes()
    assert f"hf://org/name@{commit}".encode() in found["bkt/run/out.torch.safetensors"]
    assert any(commit in note for note in done.notes)


def test_from_a_bucket_to_a_bucket_through_faults(net: Path, gs: BucketProxy) -> None:
    put({"net.safetensors": (net / "net.safetensors").read_bytes()})
    local = converted(net, net / "out.safetensors")
    gs.faults = Faults(5, rate=0.1, most=4)
    converted(net, "gs://bkt/run/out.safetensors", checkpoint="gs://bkt/run/net.safetensors")
    gs.faults = None
    assert objects()["bkt/run/out.safetensors"] == local.output.read_bytes()


def test_an_older_output_stays_without_force(net: Path, gs: BucketProxy, refused: Refused) -> None:
    for name, options in (FORMS[0], ("folder", {"format": "orbax"})):
        converted(net, f"gs://bkt/run/{name}", **options)
        before = objects()
        with refused(OutputError, f"gs://bkt/run/{name} exists already", "--force"):
            converted(net, f"gs://bkt/run/{name}", **options)
        assert objects() == before
        converted(net, f"gs://bkt/run/{name}", overwrite=True, **options)
        assert objects() == before


def test_other_things_stay(net: Path, gs: BucketProxy, refused: Refused) -> None:
    put({"out/notes.txt": b"mine"})
    with refused(OutputError, "gs://bkt/run/out is a folder with something else"):
        converted(net, "gs://bkt/run/out", format="orbax", overwrite=True)
    with refused(OutputError, "gs://bkt/run/out is a folder"):
        converted(net, "gs://bkt/run/out", overwrite=True)
    put({"out.orbax": b"a file"})
    with refused(OutputError, "gs://bkt/run/out.orbax is a file"):
        converted(net, "gs://bkt/run/out.orbax", overwrite=True)


def test_what_cannot_be_written_to_is_said_before_anything_is_read(
    net: Path, gs: BucketProxy, hub: HubServer, refused: Refused
) -> None:
    hub.commit("org/name", {"model.safetensors": (net / "net.safetensors").read_bytes()})
    gs.forbidden |= {"POST", "PUT"}
    with refused(RemoteError, "gs://bkt/run/", "no permission"):
        converted(net, "gs://bkt/run/out.safetensors", checkpoint="org/name")
    assert not any("resolve" in path for _, path, _ in hub.requests)
    with refused(OutputError, "https:// is not supported for output"):
        converted(net, "https://host/out.safetensors")
    with refused(OutputError, "gs://bkt names a bucket only"):
        converted(net, "gs://bkt")


def test_a_number_that_is_not_finite_leaves_nothing(net: Path, gs: BucketProxy) -> None:
    from safetensors.torch import load_file

    state = load_file(net / "net.safetensors")
    state["2.weight"][3, 4] = float("nan")
    save_file(state, net / "net.safetensors")
    for name, options in (FORMS[0], FORMS[2]):
        with pytest.raises(NotFiniteError):
            converted(net, f"gs://bkt/run/{name}", fail_on_nonfinite=True, **options)
        assert objects() == {}


def test_checksums_are_of_the_bytes_in_the_bucket(net: Path, gs: BucketProxy) -> None:
    local = converted(net, net / "out", format="orbax", digests=True)
    far = converted(net, "gs://bkt/run/out", format="orbax", digests=True)
    assert far.written.leaves == local.written.leaves


def test_a_source_that_is_replaced_is_not_completed(
    net: Path, gs: BucketProxy, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = (net / "net.safetensors").read_bytes()
    put({"net.safetensors": data})
    from converters.output.far_partial import FarPartial

    synced = FarPartial.sync

    def replaced(self: FarPartial) -> None:
        put({"net.safetensors": data})
        synced(self)

    monkeypatch.setattr(FarPartial, "sync", replaced)
    with refused(RemoteError, "gs://bkt/run/net.safetensors was replaced while it was read"):
        converted(
            net, "gs://bkt/run/out", checkpoint="gs://bkt/run/net.safetensors", format="orbax"
        )
    assert "bkt/run/out/_METADATA" not in objects()


def test_a_second_run_that_begins_meanwhile_stops_the_first(
    net: Path, gs: BucketProxy, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    from converters.output.far_partial import FarPartial

    taken = FarPartial.take_name

    def overtaken(self: FarPartial) -> None:
        monkeypatch.setattr(FarPartial, "take_name", taken)
        converted(net, "gs://bkt/run/out.safetensors")
        taken(self)

    monkeypatch.setattr(FarPartial, "take_name", overtaken)
    with refused(OutputError, "another conversion started to write gs://bkt/run/out.safetensors"):
        converted(net, "gs://bkt/run/out.safetensors")


def _killed(net: Path, gs: BucketProxy, due: Callable[[], bool]) -> None:
    """Run the command, and kill it when that is due."""
    run = "from migrate.cli import main; main()"
    command = [sys.executable, "-c", run, "weights", str(net / "net.safetensors")]
    command += ["--model", "net.py:Net", "--format", "orbax", "-o", "gs://bkt/run/out"]
    gs.requests.clear()
    process = subprocess.Popen(command, cwd=net, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    until(lambda: process.poll() is not None or due(), "the objects")
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_killed_and_resumed(
    net: Path, gs: BucketProxy, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path.cwd()), *sys.path]))
    local = converted(net, net / "out", format="orbax")
    gs.latency = 0.02

    def sent() -> int:
        return sum(method == "POST" and "upload" in path for method, path, _ in list(gs.requests))

    _killed(net, gs, lambda: sent() > 8)
    gs.latency = 0
    left = objects()
    assert "bkt/run/out/_METADATA" not in left
    assert any(".out.partial/" in path for path in left)
    if any(path.startswith("bkt/run/out/") for path in left):
        with refused(OutputError, "is of another conversion"):
            converted(net, "gs://bkt/run/out", format="orbax", dtype="bfloat16", resume=True)
    converted(net, "gs://bkt/run/out", format="orbax", resume=True)
    found = objects("bkt/run/out")
    for path in (net / "out").rglob("*"):
        if path.is_file():
            assert found[f"bkt/run/{path.relative_to(net)}"] == path.read_bytes()
    assert not any(".partial" in path for path in objects())
    assert local.written.nbytes


@pytest.mark.long
def test_killed_before_the_mark_of_orbax(
    net: Path, gs: BucketProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All arrays and the index are there: only what orbax calls a checkpoint by is not."""
    from orbax.checkpoint.utils import is_checkpoint_finalized

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path.cwd()), *sys.path]))
    gs.lost = "commit_success.txt"
    _killed(net, gs, lambda: gs.waiting > 0)
    gs.lost = ""
    left = objects()
    assert "bkt/run/out/_METADATA" in left
    assert "bkt/run/out/commit_success.txt" not in left
    assert not is_checkpoint_finalized("gs://bkt/run/out")
    done = converted(net, "gs://bkt/run/out", format="orbax", resume=True)
    assert done.written.resumed == done.written.nbytes
    assert is_checkpoint_finalized("gs://bkt/run/out")
    found = objects("bkt/run")
    assert {path: data for path, data in left.items() if path.startswith("bkt/run/out/")} == {
        path: data
        for path, data in found.items()
        if path.startswith("bkt/run/out/") and not path.endswith("commit_success.txt")
    }
    assert not any(".partial" in path for path in found)


def test_what_was_written_is_not_written_again(
    net: Path, gs: BucketProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bucket fails in the middle; what is there by then is kept."""
    from converters.output.far_partial import FarPartial

    def fails(self: FarPartial) -> None:
        raise RemoteError("the bucket fails", "try again")

    with monkeypatch.context() as patch:
        patch.setattr(FarPartial, "sync", fails)
        with pytest.raises(RemoteError, match="the bucket fails"):
            converted(net, "gs://bkt/run/out", format="orbax")
    gs.requests.clear()
    done = converted(net, "gs://bkt/run/out", format="orbax", resume=True)
    assert done.written.resumed == done.written.nbytes
    names = [json.dumps(path) for method, path, _ in gs.requests if method == "POST"]
    assert not any("kernel%2F0.0" in name for name in names)
    local = converted(net, net / "out", format="orbax")
    assert done.written.leaves == local.written.leaves


def test_from_a_bucket_onto_devices(net: Path, gs: BucketProxy, tmp_path: Path) -> None:
    import jax

    from converters import convert_to_mesh, convert_to_pytree

    put({"net.safetensors": (net / "net.safetensors").read_bytes()})
    (tmp_path / "rules.yaml").write_text("default: []\n")
    model = f"{net / 'net.py'}:Net"
    near = convert_to_pytree(net / "net.safetensors", model=model)
    far = convert_to_mesh(
        "gs://bkt/run/net.safetensors", model=model, mesh="data=1", spec=tmp_path / "rules.yaml"
    )
    equal = jax.tree.map(lambda one, other: bool((np.asarray(one) == other).all()), far, near)
    assert all(jax.tree.leaves(equal))
    spans = gs.bytes_asked("/download/storage/v1/b/bkt/o/run/net.safetensors")
    assert len(spans) == len(set(spans))

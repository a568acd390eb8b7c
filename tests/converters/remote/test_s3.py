"""Buckets of S3, where its driver and a stand-in for it are installed (`s3fs`, `moto[server]`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save, save_file

from converters import convert
from converters.errors import OutputError, RemoteError
from converters.remote.buckets import filesystem
from tests.converters.conftest import Refused
from tests.servers import free_port
from tests.waiting import LIMIT, until

pytest.importorskip("s3fs")
pytest.importorskip("moto")
OPTIONS: dict[str, Any] = {"assume": ["layers.*=Linear"]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a stand-in for S3, a process of its own."""
    port = free_port()
    log = tmp_path_factory.mktemp("s3") / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-p", str(port)], stdout=out, stderr=out
        )
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        try:
            with urllib.request.urlopen(url, timeout=LIMIT):
                return True
        except OSError:
            return False

    until(lambda: process.poll() is not None or answers(), "the server")
    assert process.poll() is None, log.read_text()
    yield url
    process.terminate()
    process.wait()


@pytest.fixture
def s3(server: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The bucket s3://bkt, empty."""
    for name, value in (
        ("AWS_ACCESS_KEY_ID", "a"),
        ("AWS_SECRET_ACCESS_KEY", "b"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
        ("AWS_ENDPOINT_URL", server),
    ):
        monkeypatch.setenv(name, value)
    fs = filesystem("s3", "s3://bkt", "the bucket")
    if not fs.exists("bkt"):
        fs.mkdir("bkt")
    for path in fs.find("bkt"):
        fs.rm_file(path)
    return fs


def state() -> dict[str, np.ndarray[Any, Any]]:
    random = np.random.default_rng(2)
    return {
        f"layers.{n}.weight": random.standard_normal((300, 200 + n), np.float32) for n in range(5)
    }


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("out.safetensors", {}),
        ("out.msgpack", {}),
        ("out", {"format": "orbax"}),
        ("out", {"shard_bytes": 500_000}),
    ],
    ids=["safetensors", "msgpack", "orbax", "shards"],
)
def test_from_s3_to_s3(name: str, form: dict[str, Any], s3: Any, tmp_path: Path) -> None:
    names = {key: f"model-{number}.safetensors" for number, key in enumerate(state())}
    for key, array in state().items():
        s3.pipe_file(f"bkt/src/{names[key]}", save({key: array}))
    index = json.dumps({"weight_map": names}).encode()
    s3.pipe_file("bkt/src/model.safetensors.index.json", index)
    save_file(state(), tmp_path / "src.safetensors")
    local = convert(tmp_path / "src.safetensors", output=tmp_path / name, **form, **OPTIONS)
    far = convert("s3://bkt/src", output=f"s3://bkt/run/{name}", **form, **OPTIONS)
    assert [leaf.path for leaf in far.written.leaves] == [
        leaf.path for leaf in local.written.leaves
    ]
    root = tmp_path / name
    files = [root] if root.is_file() else [path for path in root.rglob("*") if path.is_file()]
    found = {path: s3.cat_file(path) for path in s3.find("bkt/run")}
    for file in files:
        assert found[f"bkt/run/{file.relative_to(tmp_path)}"] == file.read_bytes()
    assert not any(".partial" in path for path in found)


def test_an_object_in_parts(s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("converters.output.far_partial.PART_BYTES", 5 << 20)  # the least of S3
    large = {"layers.0.weight": np.arange(3 << 20, dtype=np.float32).reshape(1536, 2048)}
    save_file(large, tmp_path / "src.safetensors")
    local = convert(tmp_path / "src.safetensors", output=tmp_path / "out.safetensors", **OPTIONS)
    convert(tmp_path / "src.safetensors", output="s3://bkt/run/out.safetensors", **OPTIONS)
    assert s3.cat_file("bkt/run/out.safetensors") == Path(str(local.output)).read_bytes()


def test_what_is_there_stays_and_what_changes_is_refused(
    s3: Any, tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.pipe_file("bkt/src/net.safetensors", save(state()))
    source, output = "s3://bkt/src/net.safetensors", "s3://bkt/run/out"
    convert(source, output=output, format="orbax", **OPTIONS)
    with refused(OutputError, "s3://bkt/run/out exists already", "--force"):
        convert(source, output=output, format="orbax", **OPTIONS)
    from converters.output.far_partial import FarPartial

    synced = FarPartial.sync

    def replaced(self: FarPartial) -> None:
        other = {key: array + 1 for key, array in state().items()}
        s3.pipe_file("bkt/src/net.safetensors", save(other))
        synced(self)

    monkeypatch.setattr(FarPartial, "sync", replaced)
    with refused(RemoteError, "s3://bkt/src/net.safetensors was replaced while it was read"):
        convert(source, output=output, format="orbax", overwrite=True, **OPTIONS)
    assert not s3.exists("bkt/run/out/commit_success.txt")


def test_no_such_bucket_and_no_credentials(
    s3: Any, tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_file(state(), tmp_path / "src.safetensors")
    with refused(OutputError, "the bucket of s3://none/out.safetensors does not exist"):
        convert(tmp_path / "src.safetensors", output="s3://none/out.safetensors", **OPTIONS)
    import s3fs

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    s3fs.S3FileSystem.clear_instance_cache()
    with refused(RemoteError, "s3://bkt/src", "credentials"):
        convert("s3://bkt/src/net.safetensors", output=tmp_path / "out.safetensors", **OPTIONS)
    s3fs.S3FileSystem.clear_instance_cache()

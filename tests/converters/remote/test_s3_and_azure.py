"""Buckets of S3 and of Azure, where their drivers and stand-ins are installed.

S3: `s3fs`, `moto[s3]`. Azure: `adlfs`, and `azurite-blob` of npm's azurite.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from shutil import which
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save, save_file

from converters import convert
from converters.errors import CheckpointNotFoundError, OutputError, RemoteError
from converters.remote.buckets import filesystem
from tests.converters.conftest import Refused
from tests.servers import free_port
from tests.waiting import LIMIT, until

pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")
OPTIONS: dict[str, Any] = {"assume": ["layers.*=Linear"]}


@dataclass(frozen=True)
class Kind:
    """A kind of bucket.

    Attributes:
        needs: the packages.
        command: what starts the stand-in for it at a port.
        variables: its URL → what its clients read of the environment.
        secrets: which of these are credentials.
        driver: where fsspec's class is.
    """

    needs: tuple[str, ...]
    command: Callable[[int], list[str]]
    variables: Callable[[str], dict[str, str]]
    secrets: tuple[str, ...]
    driver: tuple[str, str]


KEY = base64.b64encode(bytes(64)).decode()
AZURE = "DefaultEndpointsProtocol=http;AccountName=account"
KINDS = {
    "s3": Kind(
        ("s3fs", "moto", "flask_cors"),
        lambda port: [sys.executable, "-m", "moto.server", "-p", str(port)],
        lambda url: {
            "AWS_ACCESS_KEY_ID": "a",
            "AWS_SECRET_ACCESS_KEY": "b",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": url,
        },
        ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
        ("s3fs", "S3FileSystem"),
    ),
    "az": Kind(
        ("adlfs",),
        lambda port: [
            *(str(which("azurite-blob")), "--blobPort", str(port), "--inMemoryPersistence"),
            *("--skipApiVersionCheck", "--disableTelemetry"),
        ],
        lambda url: {
            "AZURE_STORAGE_CONNECTION_STRING": f"{AZURE};AccountKey={KEY};BlobEndpoint={url}/account;"
        },
        ("AZURE_STORAGE_CONNECTION_STRING",),
        ("adlfs", "AzureBlobFileSystem"),
    ),
}


@pytest.fixture(scope="module", params=KINDS)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str]]:
    """A kind of bucket, and the URL of a stand-in for it, a process of its own."""
    kind = KINDS[request.param]
    for name in kind.needs:
        pytest.importorskip(name)
    if request.param == "az" and which("azurite-blob") is None:
        pytest.skip("azurite-blob is not installed")
    port = free_port()
    log = tmp_path_factory.mktemp(request.param) / "log"
    environment = os.environ | {"AZURITE_ACCOUNTS": f"account:{KEY}"}
    with log.open("wb") as out:
        process = subprocess.Popen(kind.command(port), stdout=out, stderr=out, env=environment)
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        try:
            with urllib.request.urlopen(url, timeout=LIMIT):
                return True
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False

    until(lambda: process.poll() is not None or answers(), "the server")
    assert process.poll() is None, log.read_text()
    yield request.param, url
    process.terminate()
    process.wait()


def forget(kind: Kind) -> None:
    """Clients that were made before are not used again."""
    getattr(import_module(kind.driver[0]), kind.driver[1]).clear_instance_cache()


@pytest.fixture
def protocol(server: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
    """Of a bucket `bkt`, empty."""
    name, url = server
    for variable, value in KINDS[name].variables(url).items():
        monkeypatch.setenv(variable, value)
    forget(KINDS[name])
    fs = filesystem(name, f"{name}://bkt", "the bucket")
    if not fs.exists("bkt"):
        fs.mkdir("bkt")
    for path in fs.find("bkt"):
        fs.rm_file(path)
    return name


@pytest.fixture
def fs(protocol: str) -> Any:
    """The files of that bucket."""
    return filesystem(protocol, f"{protocol}://bkt", "the bucket")


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
def test_from_bucket_to_bucket(
    name: str, form: dict[str, Any], protocol: str, fs: Any, tmp_path: Path
) -> None:
    names = {key: f"model-{number}.safetensors" for number, key in enumerate(state())}
    for key, array in state().items():
        fs.pipe_file(f"bkt/src/{names[key]}", save({key: array}))
    index = json.dumps({"weight_map": names}).encode()
    fs.pipe_file("bkt/src/model.safetensors.index.json", index)
    save_file(state(), tmp_path / "src.safetensors")
    local = convert(tmp_path / "src.safetensors", output=tmp_path / name, **form, **OPTIONS)
    far = convert(f"{protocol}://bkt/src", output=f"{protocol}://bkt/run/{name}", **form, **OPTIONS)
    assert [leaf.path for leaf in far.written.leaves] == [
        leaf.path for leaf in local.written.leaves
    ]
    root = tmp_path / name
    files = [root] if root.is_file() else [path for path in root.rglob("*") if path.is_file()]
    found = {path: fs.cat_file(path) for path in fs.find("bkt/run")}
    for file in files:
        assert found[f"bkt/run/{file.relative_to(tmp_path)}"] == file.read_bytes()
    assert not any(".partial" in path for path in found)


def test_an_object_in_parts(
    protocol: str, fs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("converters.output.far_partial.PART_BYTES", 5 << 20)  # the least of S3
    large = {"layers.0.weight": np.arange(3 << 20, dtype=np.float32).reshape(1536, 2048)}
    save_file(large, tmp_path / "src.safetensors")
    local = convert(tmp_path / "src.safetensors", output=tmp_path / "out.safetensors", **OPTIONS)
    convert(tmp_path / "src.safetensors", output=f"{protocol}://bkt/run/out.safetensors", **OPTIONS)
    assert fs.cat_file("bkt/run/out.safetensors") == Path(str(local.output)).read_bytes()


def test_what_is_there_stays_and_what_changes_is_refused(
    protocol: str, fs: Any, tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs.pipe_file("bkt/src/net.safetensors", save(state()))
    source, output = f"{protocol}://bkt/src/net.safetensors", f"{protocol}://bkt/run/out"
    convert(source, output=output, format="orbax", **OPTIONS)
    with refused(OutputError, f"{protocol}://bkt/run/out exists already", "--force"):
        convert(source, output=output, format="orbax", **OPTIONS)
    from converters.output.far_partial import FarPartial

    synced = FarPartial.sync

    def replaced(self: FarPartial) -> None:
        other = {key: array + 1 for key, array in state().items()}
        fs.pipe_file("bkt/src/net.safetensors", save(other))
        synced(self)

    monkeypatch.setattr(FarPartial, "sync", replaced)
    with refused(
        RemoteError, f"{protocol}://bkt/src/net.safetensors was replaced while it was read"
    ):
        convert(source, output=output, format="orbax", overwrite=True, **OPTIONS)
    assert not fs.exists("bkt/run/out/commit_success.txt")


def test_no_such_bucket_and_no_credentials(
    protocol: str, fs: Any, tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_file(state(), tmp_path / "src.safetensors")
    with refused(OutputError, f"the bucket of {protocol}://none/out.safetensors does not exist"):
        convert(
            tmp_path / "src.safetensors", output=f"{protocol}://none/out.safetensors", **OPTIONS
        )
    with refused(CheckpointNotFoundError, f"the bucket of {protocol}://none/net.pt does not"):
        convert(f"{protocol}://none/net.pt", output=tmp_path / "out.safetensors", **OPTIONS)
    with refused(CheckpointNotFoundError, f"{protocol}://bkt/net.pt does not exist"):
        convert(f"{protocol}://bkt/net.pt", output=tmp_path / "out.safetensors", **OPTIONS)
    for name in KINDS[protocol].secrets:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    forget(KINDS[protocol])
    with refused(RemoteError, f"{protocol}://bkt/src", "credentials"):
        convert(
            f"{protocol}://bkt/src/net.safetensors", output=tmp_path / "out.safetensors", **OPTIONS
        )
    forget(KINDS[protocol])

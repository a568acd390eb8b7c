"""Every form of checkpoint, read from a hub, a server and a bucket as from a disk."""

from __future__ import annotations

import asyncio
import json
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from converters import convert_to_pytree, plan
from converters.checkpoint import Checkpoint, open_checkpoint
from converters.errors import (
    CheckpointDamagedError,
    CheckpointNotFoundError,
    MissingDependencyError,
    ModelLoadError,
    RemoteError,
    UnreachableError,
)
from converters.model import load_config_model
from converters.planning import planned
from converters.remote import buckets
from converters.remote.buckets import call_client, request_entry
from converters.remote.names import resolve_name, source_of
from converters.remote.retries import TemporaryError, with_retries
from converters.remote.store import StoredFile
from converters.request import PlanOptions
from tests.converters.conftest import Refused
from tests.servers import BucketProxy, Content, Faults, FileServer, HubServer, free_port

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated"),
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
]


def tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(7)
    made = {f"layer_{index}.weight": torch.randn(150, 201 + index) for index in range(5)}
    return {**made, "layer_0.bias": torch.arange(7), "half": torch.randn(3, 5).bfloat16()}


def _sharded(state: dict[str, torch.Tensor], folder: Path) -> None:
    weight_map = {}
    for number, (key, tensor) in enumerate(state.items()):
        name = f"model-{number:05}.safetensors"
        save_file({key: tensor}, folder / name)
        weight_map[key] = name
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def _numpy(state: dict[str, torch.Tensor], folder: Path) -> None:
    arrays = {key: tensor.float().numpy() for key, tensor in state.items()}
    np.savez_compressed(folder / "net.npz", **arrays)


def _distributed(state: dict[str, torch.Tensor], folder: Path) -> None:
    from torch.distributed import checkpoint

    checkpoint.save(state, checkpoint_id=str(folder), no_dist=True)


FORMS: dict[str, tuple[str, Callable[[dict[str, torch.Tensor], Path], object]]] = {
    "safetensors": ("net.safetensors", lambda s, f: save_file(s, f / "net.safetensors")),
    "sharded": ("model.safetensors.index.json", _sharded),
    "folder": ("", lambda s, f: save_file(s, f / "model.safetensors")),
    "zip": ("net.pt", lambda s, f: torch.save({"model": s, "epoch": 3}, f / "net.pt")),
    "legacy": (
        "net.pt",
        lambda s, f: torch.save(s, f / "net.pt", _use_new_zipfile_serialization=False),
    ),
    "npz": ("net.npz", _numpy),
    "dcp": ("", _distributed),
}


@pytest.fixture(params=FORMS)
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """The name of a file in a folder ("": the folder itself), and the folder."""
    name, write = FORMS[request.param]
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    write(tensors(), folder)
    return name, folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def read_all(checkpoint: Checkpoint) -> dict[str, np.ndarray[Any, Any]]:
    for key in checkpoint.infos:
        checkpoint.prepare(key)
    found = {}
    for key in checkpoint.infos:
        found[key] = checkpoint.read(key)
        checkpoint.release(key)
    return found


def require_same(name: str, local: Path) -> None:
    far, near = open_checkpoint(source_of(name)), open_checkpoint(local)
    assert dict(far.infos) == dict(near.infos)
    assert far.shared == near.shared
    expected = read_all(near)
    for prepared in (read_all(far), {key: far.read(key) for key in far.infos}):
        assert prepared.keys() == expected.keys()
        for key, array in prepared.items():
            assert array.dtype == expected[key].dtype
            assert array.tobytes() == expected[key].tobytes()
            assert not array.size or array.ctypes.data % array.dtype.alignment == 0


def test_from_the_hub(checkpoint: tuple[str, Path], hub: HubServer) -> None:
    name, folder = checkpoint
    commit = hub.commit("org/name", contents(folder))
    require_same(f"hf://org/name/{name}".rstrip("/"), folder / name)
    source = open_checkpoint(source_of(f"hf://org/name/{name}".rstrip("/"))).source
    assert source.startswith(f"hf://org/name@{commit}")


def test_a_hub_whose_listing_has_no_sizes(hub: HubServer, tmp_path: Path, refused: Refused) -> None:
    """The size is asked for by HEAD, once, and of the file that is read only."""
    hub.sizes = False
    save_file(tensors(), tmp_path / "net.safetensors")
    data = (tmp_path / "net.safetensors").read_bytes()
    hub.commit("org/net", {"model.safetensors": data, "notes.txt": b"x", "empty.safetensors": b""})
    opened = open_checkpoint(source_of("hf://org/net/model.safetensors"))
    assert opened.infos
    assert all(opened.read(key).size for key in opened.infos)
    heads = [path for method, path, _ in hub.requests if method == "HEAD"]
    assert [path.rpartition("/")[2] for path in heads] == ["model.safetensors"]
    with refused(CheckpointDamagedError, "empty.safetensors is empty"):
        open_checkpoint(source_of("hf://org/net/empty.safetensors"))


def test_from_a_server(checkpoint: tuple[str, Path], files: FileServer) -> None:
    name, folder = checkpoint
    for file, data in contents(folder).items():
        files.put(f"/run/{file}", data)
    require_same(f"{files.url}/run/{name}", folder / name)


def test_from_a_bucket(checkpoint: tuple[str, Path], gs: BucketProxy) -> None:
    name, folder = checkpoint
    put(contents(folder))
    require_same(f"gs://bkt/run/{name}".rstrip("/"), folder / name)


def put(data: dict[str, bytes], folder: str = "bkt/run") -> None:
    from converters.remote.buckets import filesystem

    fs = filesystem("gs", "gs://bkt", "the bucket")
    for name, content in data.items():
        fs.pipe_file(f"{folder}/{name}", content)


def test_no_byte_is_read_twice(checkpoint: tuple[str, Path], files: FileServer) -> None:
    name, folder = checkpoint
    for file, data in contents(folder).items():
        files.put(f"/run/{file}", data)
    read_all(open_checkpoint(source_of(f"{files.url}/run/{name}")))
    for file in contents(folder):
        spans = files.bytes_asked(f"/run/{file}")
        for (_, end), (start, _) in pairwise(spans):
            assert start >= min(end, len(files.files[f"/run/{file}"].part(0, 1 << 30))), file


def test_only_what_is_needed_is_read(files: FileServer, tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1 << 18), "b": torch.ones(1 << 18)}, tmp_path / "net.safetensors")
    data = (tmp_path / "net.safetensors").read_bytes()
    files.put("/net.safetensors", data)
    opened = open_checkpoint(source_of(f"{files.url}/net.safetensors"))
    assert opened.read("b").sum() == 1 << 18
    asked = sum(end - start for start, end in files.bytes_asked("/net.safetensors"))
    assert asked <= (1 << 20) + (64 << 10)


def test_of_what_is_left_out_nothing_is_read(files: FileServer, tmp_path: Path) -> None:
    wanted, other = ({f"{name}.weight": torch.ones(512, 1024)} for name in ("a", "b"))
    torch.save({"model": wanted, "ema": other}, tmp_path / "net.pt")
    save_file({**wanted, **other}, tmp_path / "net.safetensors")
    kernel = {"params/a/kernel": torch.ones(1024, 512)}
    save_file(kernel, tmp_path / "a.flax.safetensors")
    choices: dict[str, dict[str, Any]] = {
        "net.pt": {"key": "model"},
        "net.safetensors": {"target": tmp_path / "a.flax.safetensors", "drop": [r"b\..*"]},
    }
    for name, options in choices.items():
        data = (tmp_path / name).read_bytes()
        assert len(data) > 4 << 20
        files.put(f"/{name}", data)
        made = convert_to_pytree(source_of(f"{files.url}/{name}"), assume=["a=Linear"], **options)
        assert made["params"]["a"]["kernel"].shape == (1024, 512)
        asked = sum(end - start for start, end in files.bytes_asked(f"/{name}"))
        assert asked <= (2 << 20) + (128 << 10), name


@pytest.mark.parametrize("kind", ["bert", "of_their_own"])
def test_code_beside_a_configuration_is_never_run(kind: str, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    folder = tmp_path / "net"
    folder.mkdir()
    code = f"from pathlib import Path\nPath({str(canary)!r}).touch()\n"
    for file in ("modeling.py", "configuration.py"):
        (folder / file).write_text(code)
    own = {"AutoConfig": "configuration.Config", "AutoModel": "modeling.Model"}
    config = {"model_type": kind, "architectures": ["Model"], "auto_map": own}
    (folder / "config.json").write_text(json.dumps(config))
    save_file({"a.weight": torch.ones(2, 3)}, folder / "model.safetensors")
    for run in (load_config_model, plan):
        with pytest.raises(ModelLoadError, match="pass --model with the class"):
            run(folder)
    assert not canary.exists()


OWN_CONFIGURATION = """
from transformers import PretrainedConfig


class Config(PretrainedConfig):
    model_type = "of_their_own"
"""
OWN_MODEL = """
from torch import nn
from transformers import PreTrainedModel

from .configuration import Config


class Model(PreTrainedModel):
    config_class = Config

    def __init__(self, config):
        super().__init__(config)
        self.a = nn.Embedding(2, config.width)
        self.post_init()
"""


@pytest.mark.parametrize("where", ["disk", "hub"])
def test_code_that_is_trusted_says_the_model(
    where: str, hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules")
    )
    for name in [one for one in sys.modules if one.partition(".")[0] == "transformers_modules"]:
        monkeypatch.delitem(sys.modules, name)  # it is of the other case's cache
    monkeypatch.setattr(sys, "path", list(sys.path))  # to which transformers adds it
    folder = tmp_path / "net"
    folder.mkdir()
    (folder / "configuration.py").write_text(OWN_CONFIGURATION)
    (folder / "modeling.py").write_text(OWN_MODEL)
    own = {"AutoConfig": "configuration.Config", "AutoModel": "modeling.Model"}
    config = {"model_type": "of_their_own", "architectures": ["Model"], "auto_map": own, "width": 3}
    (folder / "config.json").write_text(json.dumps(config))
    save_file({"a.weight": torch.ones(2, 3)}, folder / "model.safetensors")
    hub.commit("org/net", contents(folder))
    source = folder if where == "disk" else "org/net"
    with pytest.raises(ModelLoadError, match="--trust-remote-code"):
        plan(source)
    made = planned(source, PlanOptions(trust_remote_code=True))
    assert [(leaf.path, leaf.info.shape) for leaf in made.leaves] == [
        ("params/a/embedding", (2, 3))
    ]
    assert any("which was run" in note for note in made.notes)


def test_headers_of_many_shards_are_read_together(files: FileServer, tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    state = {f"k{index}": torch.full((3,), index) for index in range(60)}
    _sharded(state, tmp_path / "c")
    for file, data in contents(tmp_path / "c").items():
        files.put(f"/run/{file}", data)
    files.latency = 0.02
    opened = open_checkpoint(source_of(f"{files.url}/run/model.safetensors.index.json"))
    assert len(opened.infos) == 60
    assert files.most_running > 4
    assert all(len(files.bytes_asked(f"/run/{file}")) == 1 for file in contents(tmp_path / "c"))


def test_a_shared_tensor_is_read_once_while_both_want_it(files: FileServer, tmp_path: Path) -> None:
    save_file({"qkv": torch.zeros(1 << 20)}, tmp_path / "net.safetensors")
    files.put("/net.safetensors", (tmp_path / "net.safetensors").read_bytes())
    opened = open_checkpoint(source_of(f"{files.url}/net.safetensors"))
    for _ in range(3):
        opened.prepare("qkv")
    first = opened.read("qkv")
    opened.release("qkv")
    assert opened.read("qkv").ctypes.data == opened.read("qkv").ctypes.data == first.ctypes.data
    assert len(files.requests) == 2


def test_what_a_name_means(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    commit = hub.commit("org/name", {"model.safetensors": b"x", "sub/net.pt": b"y"})
    older = hub.commit("org/name", {"model.safetensors": b"z"}, branch="v1")
    monkeypatch.chdir(tmp_path)
    assert resolve_name("org/name").description == (
        f"org/name of the Hugging Face hub, main is the commit {commit}"
    )
    assert str(source_of("org/name@v1")) == f"hf://org/name@{older}"
    assert str(source_of(f"hf://org/name@{older}")) == f"hf://org/name@{older}"
    assert str(source_of("hf://org/name/sub/net.pt")) == f"hf://org/name@{commit}/sub/net.pt"
    page = "https://huggingface.co/org/name/blob/main/sub/net.pt"
    assert str(source_of(page)) == f"hf://org/name@{commit}/sub/net.pt"
    page = f"{hub.url}/org/name/resolve/v1/model.safetensors?download=true"
    assert str(source_of(page)) == f"hf://org/name@{older}/model.safetensors"
    assert source_of("org/net.pt") == Path("org/net.pt")
    assert source_of("file:///tmp/a%20b") == Path("/tmp/a b")
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert source_of("org/name") == Path("org/name")  # what exists wins
    # Beside it a name is a path.
    with refused(CheckpointNotFoundError, "org/other does not exist", "hf://org/other"):
        resolve_name("org/other")
    with refused(CheckpointNotFoundError, "gpt2 does not exist", "org/gpt2"):
        resolve_name("gpt2")


def test_refusals_of_the_hub(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    hub.commit("org/name", {"model.safetensors": b"x"})
    hub.commit("org/secret", {"model.safetensors": b"x"}, token="hf_12345")
    hub.commit("org/gated", {"model.safetensors": b"x" * 100}, gated=True)
    with refused(RemoteError, "org/nothing is not on the Hugging Face hub, or private"):
        source_of("org/nothing")
    with refused(RemoteError, "org/secret", "hf auth login"):
        source_of("org/secret")
    with refused(RemoteError, "org/name has no revision v9"):
        source_of("org/name@v9")
    with refused(CheckpointNotFoundError, "org/name has no file net.pt"):
        source_of("hf://org/name/net.pt")
    with refused(RemoteError, "org/gated is gated", "accept its conditions"):
        open_checkpoint(source_of("org/gated"))
    hub.tokens = {"hf_12345"}
    monkeypatch.setenv("HF_TOKEN", "hf_typo")
    for name in ("org/name", "org/secret"):
        with refused(RemoteError, f"{name} cannot be read: the hub does not know the token"):
            source_of(name)


def test_a_token_opens_a_private_repository_and_is_never_shown(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_file({"weight": torch.ones(3)}, tmp_path / "net.safetensors")
    data = (tmp_path / "net.safetensors").read_bytes()
    hub.commit("org/secret", {"model.safetensors": data}, token="hf_12345")
    monkeypatch.setenv("HF_TOKEN", "hf_12345")
    made = planned("org/secret", PlanOptions(assume=["weight=Parameter"]))
    assert made.checkpoint.read("weight").sum() == 3
    assert "hf_12345" not in repr(made) + str(made.notes)
    hub.repositories["org/secret"].token = "another"
    with pytest.raises(RemoteError) as caught:
        source_of("org/secret")
    assert "hf_12345" not in str(caught.value)


def test_the_cache_comes_first(hub: HubServer, tmp_path: Path, refused: Refused) -> None:
    from huggingface_hub import constants, hf_hub_download

    save_file(tensors(), tmp_path / "net.safetensors")
    data = (tmp_path / "net.safetensors").read_bytes()
    hub.commit("org/name", {"model.safetensors": data})
    hf_hub_download("org/name", "model.safetensors", cache_dir=constants.HF_HUB_CACHE)
    hub.requests.clear()
    assert len(read_all(open_checkpoint(source_of("org/name")))) == len(tensors())
    assert not any("resolve" in path for _, path, _ in hub.requests)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "HF_HUB_OFFLINE", True)
        hub.requests.clear()
        assert "from the cache" in resolve_name("org/name").description
        assert len(open_checkpoint(source_of("org/name")).infos) == len(tensors())
        with refused(CheckpointNotFoundError, "org/other at main is not in the cache"):
            source_of("org/other")
        assert hub.requests == []


def test_the_configuration_of_a_repository_is_its_model(
    hub: HubServer, minilm_folder: Path
) -> None:
    names = ("config.json", "model.safetensors")
    hub.commit("org/minilm", {name: (minilm_folder / name).read_bytes() for name in names})
    near, far = plan(minilm_folder), plan("org/minilm")
    assert far.rows == near.rows
    assert not far.refused


def test_secrets_of_a_url_are_in_no_message(files: FileServer, refused: Refused) -> None:
    host = files.url.removeprefix("http://")
    with pytest.raises(CheckpointNotFoundError) as caught:
        open_checkpoint(source_of(f"http://me:pa55@{host}/net.pt?X-Signature=5ecret"))
    assert "pa55" not in str(caught.value)
    assert "5ecret" not in str(caught.value)
    assert "X-Signature=5ecret" in files.requests[-1][1]


def test_refusals_of_a_server(files: FileServer, refused: Refused) -> None:
    files.put("/net.safetensors", b"x" * 100)
    files.statuses["/net.safetensors"] = 403
    with refused(RemoteError, "may not be read (status 403)"):
        open_checkpoint(source_of(f"{files.url}/net.safetensors"))
    files.statuses["/net.safetensors"] = 503
    with refused(UnreachableError, "cannot be reached (status 503, 7 times)"):
        open_checkpoint(source_of(f"{files.url}/net.safetensors"))
    files.statuses.clear()
    files.ranges = False
    with refused(RemoteError, "does not serve byte ranges"):
        open_checkpoint(source_of(f"{files.url}/net.safetensors"))


def test_a_server_that_is_not_there(files: FileServer, refused: Refused) -> None:
    with refused(UnreachableError, "cannot be reached (ConnectError"):
        open_checkpoint(source_of("http://127.0.0.1:1/net.safetensors"))


def test_refusals_of_a_bucket(gs: BucketProxy, refused: Refused) -> None:
    with refused(CheckpointNotFoundError, "gs://bkt/nothing does not exist"):
        open_checkpoint(source_of("gs://bkt/nothing"))
    put({"notes/todo.txt": b"mine"})
    with refused(CheckpointNotFoundError, "gs://bkt/run holds no checkpoint"):
        open_checkpoint(source_of("gs://bkt/run"))
    for name in ("gs://none", "gs://none/", "gs://none/x", "gs://none/a/net.pt"):
        with refused(CheckpointNotFoundError, f"bucket of {name.rstrip('/')} does not exist"):
            open_checkpoint(source_of(name))
    gs.forbidden.add("GET")
    with refused(RemoteError, "gs://bkt/net.pt: no permission", "log in"):
        open_checkpoint(source_of("gs://bkt/net.pt"))


def test_an_unknown_protocol(refused: Refused) -> None:
    with refused(RemoteError, "unknown protocol xyz://"):
        source_of("xyz://bucket/file")


@pytest.mark.parametrize(
    ("url", "package", "extra"),
    [
        ("gs://bkt/net.pt", "gcsfs", "gcs"),
        ("s3://bkt/net.pt", "s3fs", "s3"),
        ("az://bkt/net.pt", "adlfs", "azure"),
    ],
)
def test_what_is_not_installed_is_named_with_its_command(
    url: str, package: str, extra: str, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    command = f"pip install '.[{extra}]' in a clone of tpu-migrate"
    with refused(MissingDependencyError, f"{url} needs {package}, which is not", command):
        source_of(url)


def test_tries_come_later_each_time_and_not_before_they_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    paused: list[float] = []
    monkeypatch.setattr("converters.remote.retries.time.sleep", paused.append)
    monkeypatch.setattr("converters.remote.retries.random.uniform", lambda low, high: low)

    def busy() -> None:
        raise TemporaryError("429", 0.5 if len(paused) == 1 else None)

    with refused(UnreachableError, "gs://bkt/x cannot be reached (429, 7 times)"):
        with_retries(busy, "gs://bkt/x")
    assert paused == [0.005, 0.5, 0.02, 0.04, 0.08, 0.16]  # of a first pause of 0.01, here


def test_what_a_client_has_tried_itself_counts(refused: Refused) -> None:
    """gcsfs asks six times, for half a minute; seven times that is no answer to who mistyped a host."""
    aiohttp = pytest.importorskip("aiohttp")
    asked: list[int] = []

    async def nobody() -> None:
        async with aiohttp.ClientSession() as session:
            await session.get(f"http://127.0.0.1:{free_port()}")

    def once() -> None:
        asked.append(1)
        call_client("gs://bkt/x", lambda: asyncio.run(nobody()))

    with refused(UnreachableError, "gs://bkt/x cannot be reached (ClientConnectorError, 12 times)"):
        with_retries(once, "gs://bkt/x")
    assert len(asked) == 2


@contextmanager
def _faults(server: FileServer | HubServer, seed: int) -> Iterator[Faults]:
    server.faults = Faults(seed, rate=0.3)
    try:
        yield server.faults
    finally:
        server.faults = None


@pytest.mark.parametrize("seed", range(8))
def test_disturbed_answers_change_nothing(seed: int, files: FileServer, tmp_path: Path) -> None:
    save_file(tensors(), tmp_path / "net.safetensors")
    files.put("/net.safetensors", (tmp_path / "net.safetensors").read_bytes())
    with _faults(files, seed) as faults:
        found = read_all(open_checkpoint(source_of(f"{files.url}/net.safetensors")))
    assert faults.done
    for key, tensor in tensors().items():
        assert found[key].tobytes() == tensor.view(torch.uint8).numpy().tobytes()


def test_an_object_that_is_replaced_is_refused(files: FileServer, refused: Refused) -> None:
    first, second = (_one(value) for value in (1.0, 2.0))
    files.put("/net.safetensors", first)
    opened = open_checkpoint(source_of(f"{files.url}/net.safetensors"))
    files.put("/net.safetensors", second)
    with refused(RemoteError, "/net.safetensors was replaced while it was read"):
        opened.read("w")


def test_an_object_of_a_bucket_that_is_replaced_is_refused(
    gs: BucketProxy, refused: Refused
) -> None:
    first, second = (_one(value) for value in (1.0, 2.0))
    put({"net.safetensors": first})
    opened = open_checkpoint(source_of("gs://bkt/run/net.safetensors"))
    put({"net.safetensors": second})
    with refused(RemoteError, "gs://bkt/run/net.safetensors was replaced while it was read"):
        opened.read("w")


def _one(value: float) -> bytes:
    from safetensors.torch import save

    return save({"w": torch.full((1 << 18,), value)})


def test_a_place_goes_to_another_process_with_what_was_read(
    files: FileServer, tmp_path: Path
) -> None:
    save_file(tensors(), tmp_path / "net.safetensors")
    files.put("/net.safetensors", (tmp_path / "net.safetensors").read_bytes())
    place = source_of(f"{files.url}/net.safetensors")
    open_checkpoint(place)
    files.requests.clear()
    again = open_checkpoint(pickle.loads(pickle.dumps(place)))
    assert again.infos.keys() == tensors().keys()
    assert files.requests == []


def test_a_checkpoint_of_terabytes_costs_its_header(files: FileServer) -> None:
    """Nothing is stored, here or there: the bytes follow from their places."""
    side, count = 1 << 18, 3
    nbytes = side * side * 4
    entries = {
        f"k{index}": {
            "dtype": "F32",
            "shape": [side, side],
            "data_offsets": [index * nbytes, (index + 1) * nbytes],
        }
        for index in range(count)
    }
    header = json.dumps(entries).encode()
    start = len(header).to_bytes(8, "little") + header

    def part(first: int, end: int) -> bytes:
        return start[first:end] + b"\0" * (end - max(first, len(start)))

    files.put("/big.safetensors", Content(len(start) + count * nbytes, part, "v1"))
    opened = open_checkpoint(source_of(f"{files.url}/big.safetensors"))
    assert sum(info.nbytes for info in opened.infos.values()) == count * nbytes
    assert files.bytes_asked("/big.safetensors") == [(0, 64 << 10)]


def test_shards_in_a_bucket_are_found_by_one_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thirty that are asked for together are no thirty questions."""
    fs = fsspec.filesystem("memory")
    state = {f"k{index}": torch.full((3,), index) for index in range(30)}
    _sharded(state, tmp_path)
    for file, data in contents(tmp_path).items():
        fs.pipe_file(f"/of-one-list/{file}", data)
    asked: list[str] = []

    def counted(fs: object, path: str) -> StoredFile | None:
        asked.append(path)
        return request_entry(fs, path)

    monkeypatch.setattr(buckets, "request_entry", counted)
    try:
        opened = open_checkpoint(source_of("memory://of-one-list/model.safetensors.index.json"))
        assert len(opened.infos) == 30
        assert len(asked) <= 2
    finally:
        fs.rm("/of-one-list", recursive=True)


def test_a_server_that_is_not_there_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a protocol whose driver connects as soon as it is made."""
    monkeypatch.setattr("converters.remote.retries.FIRST_PAUSE", 0.0)
    with pytest.raises(UnreachableError, match=r"ftp://127\.0\.0\.1.* cannot be reached"):
        source_of(f"ftp://127.0.0.1:{free_port()}/net.safetensors")

"""Folders of torch.distributed.checkpoint, as torch writes them and as it should not."""

import argparse
import io
import os
import pickle
import random
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    _MEM_FORMAT_ENCODING,
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from converters.checkpoint import LazyTensor, open_checkpoint
from converters.errors import (
    CheckpointDamagedError,
    CheckpointHoldsCodeError,
    CheckpointNotFoundError,
    NotAStateDictError,
)
from tests.waiting import LIMIT

WHOLE = torch.arange(24.0).reshape(4, 6)


class Code:
    def __init__(self, canary):
        self.canary = canary

    def __reduce__(self):
        return os.system, (f"touch {self.canary}",)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model and its optimizer after a step, and the folder they were saved in."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(2, 3)).square().sum().backward()
    optimizer.step()
    folder = tmp_path_factory.mktemp("dcp")
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
    dcp.save(state, checkpoint_id=folder, no_dist=True)
    return model, optimizer, folder


@pytest.fixture
def folder(trained, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(trained[2], copy)
    return copy


# torch warns of what its own writer does.
pytestmark = pytest.mark.filterwarnings(
    "ignore:torch.distributed is disabled", "ignore:TypedStorage is deprecated"
)


def test_the_model_is_found_and_read(trained):
    model, _, folder = trained
    checkpoint = open_checkpoint(folder)
    assert checkpoint.entry == "model"
    assert list(checkpoint.infos) == list(model.state_dict())
    for key, tensor in model.state_dict().items():
        np.testing.assert_array_equal(checkpoint.read(key), tensor.numpy())
        checkpoint.release(key)


def test_the_optimizer_is_at_hand(trained):
    _, optimizer, folder = trained
    training = open_checkpoint(folder).training
    assert training["epoch"] == 3
    (group,) = training["optimizer"]["param_groups"]
    assert group["lr"] == 0.1
    assert group["betas"] == (0.9, 0.999)
    moment = training["optimizer"]["state"]["0"]["exp_avg"]
    assert isinstance(moment, LazyTensor)
    expected = optimizer.state_dict()["state"][0]["exp_avg"]
    np.testing.assert_array_equal(moment.read(), expected.numpy())


def test_a_plain_state_dict(tmp_path):
    weights = {"a.weight": torch.ones(2, dtype=torch.bfloat16), "b": torch.tensor(3)}
    dcp.save(weights, checkpoint_id=tmp_path, no_dist=True)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.entry == ""
    assert {key: info.dtype for key, info in checkpoint.infos.items()} == {
        "a.weight": "bfloat16",
        "b": "int64",
    }
    assert checkpoint.read("b") == 3


def written(folder, parts, *, size=(4, 6), change=None):
    """A tensor `w` whose parts are [(offsets, sizes)], each in a file of its own."""
    chunks = [ChunkStorageMetadata(torch.Size(at), torch.Size(sides)) for at, sides in parts]
    properties = TensorProperties(dtype=torch.float32)
    metadata = Metadata(
        {"w": TensorStorageMetadata(properties, torch.Size(size), chunks)},
        planner_data={"w": ("w",)},
        storage_data={},
    )
    for rank, (at, sides) in enumerate(parts):
        file = io.BytesIO()
        place = tuple(slice(first, first + side) for first, side in zip(at, sides, strict=True))
        torch.save(WHOLE[place].clone(), file)
        name = f"__{rank}_0.distcp"
        (folder / name).write_bytes(b"before" + file.getvalue() + b"after")
        index = MetadataIndex("w", at)
        metadata.storage_data[index] = _StorageInfo(name, 6, len(file.getvalue()))
    if change:
        change(metadata)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    return folder


GRID = [((row, column), (2, 3)) for row in (0, 2) for column in (0, 3)]


@pytest.mark.parametrize("parts", [GRID, [((0, 0), (4, 6))], [((0, 0), (1, 6)), ((1, 0), (3, 6))]])
def test_a_tensor_of_parts(tmp_path, parts):
    checkpoint = open_checkpoint(written(tmp_path, parts))
    assert checkpoint.infos["w"].shape == (4, 6)
    np.testing.assert_array_equal(checkpoint.read("w"), WHOLE.numpy())
    checkpoint.release("w")
    np.testing.assert_array_equal(checkpoint.read("w"), WHOLE.numpy())


def test_many_parts_quickly(monkeypatch):
    """A grid is told in linear time; parts of no grid are compared with each other, if they are few."""
    from converters.checkpoint.formats import distributed_metadata
    from converters.checkpoint.formats.distributed_metadata import Chunk, FileRange, _require_whole
    from converters.checkpoint.reader import TensorInfo

    compared = []
    overlap = distributed_metadata._overlap
    monkeypatch.setattr(
        distributed_metadata, "_overlap", lambda *two: compared.append(two) or overlap(*two)
    )
    place = FileRange("x", 0, 1 << 20)
    chunks = [Chunk((row, column), (1, 1), place) for row in range(200) for column in range(200)]
    info = TensorInfo((200, 200), "float32")
    _require_whole("w", info, tuple(chunks))
    assert compared == []
    irregular = (Chunk((0, 0), (100, 200), place), Chunk((100, 0), (100, 50), place))
    irregular += (Chunk((100, 50), (100, 150), place),)
    _require_whole("w", info, irregular)
    for wrong in ([*chunks[:-1], chunks[0]], chunks[:-1], [*irregular[:2], irregular[1]]):
        with pytest.raises(ValueError, match="leave gaps, or overlap"):
            _require_whole("w", info, tuple(wrong))
    assert len(compared) < 10


def _name(name):
    def change(metadata):
        for info in metadata.storage_data.values():
            info.relative_path = name

    return change


def _offset(value):
    def change(metadata):
        for info in metadata.storage_data.values():
            info.offset = value

    return change


def _transformed(metadata):
    for info in metadata.storage_data.values():
        info.transform_descriptors = ["zstd"]


def _forgotten(metadata):
    metadata.storage_data.popitem()


def _bytes(metadata):
    metadata.state_dict_metadata["x"] = BytesStorageMetadata()


def _clash(metadata):
    metadata.state_dict_metadata["w.x"] = metadata.state_dict_metadata["w"]
    metadata.planner_data["w.x"] = ("w", "x")
    for index, info in list(metadata.storage_data.items()):
        metadata.storage_data[MetadataIndex("w.x", index.offset)] = info


@pytest.mark.parametrize(
    ("parts", "change", "part"),
    [
        (GRID[:3], None, "leave gaps, or overlap"),
        ([*GRID[:3], GRID[0]], None, "leave gaps, or overlap"),
        ([((0, 0), (4, 7))], None, "impossible part"),
        ([((0,), (4,))], None, "impossible part"),
        (GRID, _name("../outside"), "names files outside its folder: ../outside"),
        (GRID, _name("/etc/passwd"), "names files outside its folder: /etc/passwd"),
        (GRID, _offset(1 << 60), "is truncated"),
        (GRID, _offset(-1), "impossible location"),
        (GRID, _offset(7), "__0_0.distcp is truncated or damaged"),
        (GRID, _transformed, "zstd"),
        (GRID, _forgotten, "damaged"),
        (GRID, _bytes, "damaged"),
        (GRID, _clash, "two entries at 'w.x'"),
    ],
)
def test_metadata_that_contradict_themselves(tmp_path, parts, change, part, refused):
    with refused(CheckpointDamagedError, part):
        open_checkpoint(written(tmp_path, parts, change=change)).read("w")


def test_links_to_elsewhere_are_refused(tmp_path, refused):
    inside = tmp_path / "inside"
    inside.mkdir()
    written(inside, GRID)
    (inside / "__0_0.distcp").rename(tmp_path / "outside")
    (inside / "__0_0.distcp").symlink_to(tmp_path / "outside")
    with refused(CheckpointDamagedError, "outside its folder: __0_0.distcp"):
        open_checkpoint(inside)


def test_files_that_lack(tmp_path, refused):
    written(tmp_path, GRID)
    (tmp_path / "__2_0.distcp").unlink()
    with refused(CheckpointNotFoundError, "__2_0.distcp", "every rank"):
        open_checkpoint(tmp_path)


def test_another_tensor_than_announced_is_refused(tmp_path, refused):
    written(tmp_path, GRID)
    content = (tmp_path / "__0_0.distcp").read_bytes()
    file = io.BytesIO()
    torch.save(torch.ones(6), file)
    (tmp_path / "__0_0.distcp").write_bytes(b"before" + file.getvalue().ljust(len(content)))
    with refused(CheckpointDamagedError, "__0_0.distcp"):
        open_checkpoint(tmp_path).read("w")


@pytest.mark.parametrize("nested", [False, True])
def test_code_in_metadata_is_refused_and_not_run(folder, tmp_path, nested, refused):
    canary = tmp_path / "canary"
    evil = Code(canary)
    if nested:
        metadata = pickle.loads((folder / ".metadata").read_bytes())
        metadata.planner_data["x"] = evil
        evil = metadata
    (folder / ".metadata").write_bytes(pickle.dumps(evil))
    with refused(CheckpointHoldsCodeError, ".metadata", "posix.system", "nothing was executed"):
        open_checkpoint(folder)
    assert not canary.exists()


WRITTEN = Path(__file__).parent / "written"


@pytest.mark.parametrize("folder", sorted(path.parent.name for path in WRITTEN.glob("*/.metadata")))
def test_what_each_python_and_torch_writes(folder):
    """Members of enums and paths are pickled in other ways by Python 3.11.2, 3.12 and 3.13."""
    checkpoint = open_checkpoint(WRITTEN / folder)
    assert checkpoint.entry == "model"
    assert {key: info.dtype for key, info in checkpoint.infos.items()} == {
        "weight": "float32",
        "bias": "float32",
    }
    assert checkpoint.read("weight").tolist() == [[0.0, 0.125, 0.25], [0.375, 0.5, 0.625]]
    assert checkpoint.read("bias").tolist() == [0.5, -1.0]
    assert checkpoint.training["epoch"] == 3


def test_each_way_of_writing_is_at_hand():
    written = b"".join(path.read_bytes() for path in WRITTEN.glob("*/.metadata"))
    for way in (b"builtins", b"getattr", b"pathlib._local", b"pathlib\x94", b"TORCH_CONTIGUOUS"):
        assert way in written


class Reached:
    """Pickled as `getattr(of, name)`."""

    def __init__(self, of, name):
        self.pair = of, name

    def __reduce__(self):
        return getattr, self.pair


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize(
    ("of", "name"),
    [
        (_MEM_FORMAT_ENCODING, "__class__"),
        (_MEM_FORMAT_ENCODING, "mro"),
        (Metadata, "__init__"),
        (Reached(_MEM_FORMAT_ENCODING, "TORCH_CHANNELS_LAST"), "name"),
        ("text", "format"),
    ],
)
def test_getattr_reaches_members_of_enums_only(folder, of, name, protocol, refused):
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    metadata.planner_data["x"] = Reached(of, name)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata, protocol))
    with refused(CheckpointHoldsCodeError, ".metadata", "getattr", "nothing was executed"):
        open_checkpoint(folder)


def test_code_in_an_object_is_refused_when_it_is_asked_for(tmp_path, refused):
    canary = tmp_path / "canary"
    state = {"model": {"w": torch.ones(2)}, "args": Code(canary)}
    dcp.save(state, checkpoint_id=tmp_path / "x", no_dist=True)
    canary.unlink(missing_ok=True)
    checkpoint = open_checkpoint(tmp_path / "x")
    assert checkpoint.read("w").tolist() == [1, 1]
    with refused(CheckpointHoldsCodeError, "posix.system", "nothing was executed"):
        len(checkpoint.training)
    assert not canary.exists()


def test_thirty_cuts(folder, trained, refused):
    chance = random.Random(3)
    for name in (".metadata", "__0_0.distcp"):
        whole = (trained[2] / name).read_bytes()
        for _ in range(30):
            (folder / name).write_bytes(whole[: chance.randrange(1, len(whole))])
            with refused(CheckpointDamagedError, str(folder), "truncated"):
                open_checkpoint(folder)
        (folder / name).write_bytes(whole)


def test_a_key_is_for_several(tmp_path, refused):
    state = {"model": {"w": torch.ones(2)}, "ema": {"w": torch.zeros(2)}}
    dcp.save(state, checkpoint_id=tmp_path, no_dist=True)
    with refused(NotAStateDictError, "--key: model, ema"):
        open_checkpoint(tmp_path)
    assert open_checkpoint(tmp_path, key="ema").read("w").tolist() == [0, 0]


@pytest.mark.long
def test_what_two_ranks_of_fsdp_save(tmp_path):
    script = tmp_path / "save.py"
    script.write_text(
        textwrap.dedent(
            """
            import sys

            import torch
            import torch.distributed as dist
            import torch.distributed.checkpoint as dcp
            from torch.distributed.checkpoint.state_dict import get_state_dict
            from torch.distributed.fsdp import fully_shard

            from shims._shared import gloo_threads

            dist.init_process_group("gloo")
            gloo_threads.let_go_at_exit()
            torch.manual_seed(0)
            mesh = dist.init_device_mesh("cpu", (2,))
            model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 3))
            if dist.get_rank() == 0:
                torch.save(model.state_dict(), sys.argv[1] + "/whole.pt")
            fully_shard(model, mesh=mesh)
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
            model(torch.ones(2, 5)).sum().backward()
            optimizer.step()
            weights, moments = get_state_dict(model, optimizer)
            dcp.save({"model": weights, "optim": moments}, checkpoint_id=sys.argv[1] + "/dcp")
            dist.destroy_process_group()
            """
        )
    )
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    subprocess.run(
        [*launch, str(script), str(tmp_path)], check=True, timeout=LIMIT, capture_output=True
    )
    assert len(list((tmp_path / "dcp").glob("*.distcp"))) == 2
    whole = torch.load(tmp_path / "whole.pt")
    checkpoint = open_checkpoint(tmp_path / "dcp")
    assert checkpoint.entry == "model"
    for key, tensor in whole.items():
        np.testing.assert_array_equal(checkpoint.read(key), tensor.numpy())
    state = checkpoint.training["optim"]["state"]
    assert state["0.weight"]["exp_avg"].read().shape == (7, 5)


def test_what_lightning_writes_beside_it(tmp_path, refused):
    """Its strategies save the model and the optimizers so, and all else by torch.save in meta.pt."""
    state = {"model": {"net.weight": torch.arange(6.0).reshape(2, 3)}}
    state["optimizer_0"] = {"state": {"net.weight": {"exp_avg": torch.ones(2, 3)}}}
    dcp.save(state, checkpoint_id=tmp_path)
    beside = {
        "epoch": 3,
        "loops": {0: "fit", 1: "test"},
        "hyper_parameters": {"width": 7, "args": argparse.Namespace(lr=0.1)},
        "callbacks": {"EMA": {"weights": {"net.weight": torch.zeros(2, 3)}}},
    }
    torch.save(beside, tmp_path / "meta.pt")
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.entry == "model"
    np.testing.assert_array_equal(checkpoint.read("net.weight"), np.arange(6).reshape(2, 3))
    assert checkpoint.training["epoch"] == 3
    assert checkpoint.training["loops"] == {0: "fit", 1: "test"}
    assert checkpoint.options["hyper_parameters"] == {"width": 7, "args": {"lr": 0.1}}
    assert checkpoint.unbuilt == ("argparse.Namespace",)
    torch.save({"epoch": eval}, tmp_path / "meta.pt")
    with refused(CheckpointHoldsCodeError, "meta.pt", "eval"):
        open_checkpoint(tmp_path)

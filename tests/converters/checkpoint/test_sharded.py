"""Checkpoints in several files, listed by an index."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from converters.checkpoint import open_checkpoint
from converters.errors import CheckpointDamagedError, CheckpointNotFoundError

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.fixture
def folder(tmp_path):
    save_file({"a": torch.ones(2, 3)}, tmp_path / FIRST)
    save_file({"b": torch.full((4,), 2.0)}, tmp_path / SECOND)
    write_index(tmp_path, {"a": FIRST, "b": SECOND})
    return tmp_path


def write_index(folder, weight_map):
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def test_shards_read_as_one(folder):
    for path in (folder, folder / "model.safetensors.index.json"):
        checkpoint = open_checkpoint(path)
        assert {key: info.shape for key, info in checkpoint.infos.items()} == {
            "a": (2, 3),
            "b": (4,),
        }
        np.testing.assert_array_equal(checkpoint.read("b"), np.full(4, 2.0, np.float32))


def test_torch_shards(tmp_path):
    torch.save({"a": torch.ones(2)}, tmp_path / "pytorch_model-00001-of-00001.bin")
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "pytorch_model-00001-of-00001.bin"}}))
    assert open_checkpoint(tmp_path).read("a").tolist() == [1.0, 1.0]


def test_missing_shards_are_all_named(folder, refused):
    (folder / FIRST).unlink()
    (folder / SECOND).unlink()
    with refused(CheckpointNotFoundError, FIRST, SECOND):
        open_checkpoint(folder)


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "sub/x.safetensors", ""])
def test_a_file_outside_the_folder_is_refused(folder, name, refused):
    write_index(folder, {"a": FIRST, "b": name})
    with refused(CheckpointDamagedError, "outside its folder"):
        open_checkpoint(folder)


def test_a_link_to_elsewhere_is_refused(folder, tmp_path_factory, refused):
    outside = tmp_path_factory.mktemp("outside") / "x.safetensors"
    (folder / SECOND).rename(outside)
    (folder / SECOND).symlink_to(outside)
    with refused(CheckpointDamagedError, "outside its folder", SECOND):
        open_checkpoint(folder)


def test_the_links_of_the_hugging_face_cache_are_followed(folder, tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    blobs, snapshot = cache / "blobs", cache / "snapshots" / "0123"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for number, path in enumerate(sorted(folder.iterdir())):
        path.rename(blobs / str(number))
        (snapshot / path.name).symlink_to(f"../../blobs/{number}")
    checkpoint = open_checkpoint(snapshot)
    assert checkpoint.read("b").tolist() == [2.0] * 4
    checkpoint.release("b")


def test_a_key_that_is_listed_twice_is_refused(folder, refused):
    index = folder / "model.safetensors.index.json"
    index.write_text(f'{{"weight_map": {{"a": "{FIRST}", "b": "{SECOND}", "a": "{SECOND}"}}}}')
    with refused(CheckpointDamagedError, "has 'a' twice"):
        open_checkpoint(folder)


def test_shards_of_torch_share_and_tell(tmp_path):
    weight = torch.ones(2)
    torch.save(
        {"a": weight, "b": weight, "epoch": 3}, tmp_path / "pytorch_model-00001-of-00002.bin"
    )
    torch.save({"c": torch.zeros(2)}, tmp_path / "pytorch_model-00002-of-00002.bin")
    index = tmp_path / "pytorch_model.bin.index.json"
    names = {"a": 1, "b": 1, "c": 2}
    listed = {key: f"pytorch_model-0000{part}-of-00002.bin" for key, part in names.items()}
    index.write_text(json.dumps({"weight_map": listed}))
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.shared == (("a", "b"),)
    assert checkpoint.others == {"epoch": "int 3"}


@pytest.mark.parametrize(
    "weight_map",
    [{"a": FIRST}, {"a": FIRST, "b": SECOND, "c": SECOND}, {"a": SECOND, "b": FIRST}],
    ids=["key not listed", "key not there", "swapped"],
)
def test_an_index_that_disagrees_with_its_shards(folder, weight_map, refused):
    if SECOND not in weight_map.values():
        save_file({"a": torch.ones(2, 3), "b": torch.ones(4)}, folder / FIRST)
    write_index(folder, weight_map)
    with refused(CheckpointDamagedError, "disagrees with its shards"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"weight_map": {}}', '{"weight_map": {"a": 1}}', "[" * 100_000]
)
def test_what_is_no_index(folder, text, refused):
    (folder / "model.safetensors.index.json").write_text(text)
    with refused(CheckpointDamagedError, "no weight_map"):
        open_checkpoint(folder)

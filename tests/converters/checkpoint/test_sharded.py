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


@pytest.mark.parametrize("text", ["{", "[]", '{"weight_map": {}}', '{"weight_map": {"a": 1}}'])
def test_what_is_no_index(folder, text, refused):
    (folder / "model.safetensors.index.json").write_text(text)
    with refused(CheckpointDamagedError, "no weight_map"):
        open_checkpoint(folder)

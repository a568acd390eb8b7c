"""What a path holds is told by its content; what holds nothing is refused by name."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from converters.checkpoint import open_checkpoint
from converters.checkpoint.folder import partial_checkpoint_notes
from converters.errors import (
    CheckpointDamagedError,
    CheckpointNotFoundError,
    NotAStateDictError,
    UnsupportedDtypeError,
)


def test_the_name_does_not_matter(tmp_path):
    torch.save({"a": torch.ones(2)}, tmp_path / "x.safetensors")
    save_file({"b": torch.ones(3)}, tmp_path / "y.pt")
    assert list(open_checkpoint(tmp_path / "x.safetensors").infos) == ["a"]
    assert list(open_checkpoint(tmp_path / "y.pt").infos) == ["b"]


@pytest.mark.parametrize("form", ["safetensors", "torch"])
def test_a_folder_with_a_hugging_face_name(tmp_path, form):
    if form == "torch":
        torch.save({"a": torch.ones(2)}, tmp_path / "pytorch_model.bin")
    else:
        save_file({"a": torch.ones(2)}, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path)
    assert list(checkpoint.infos) == ["a"]
    assert checkpoint.read("a").tolist() == [1.0, 1.0]


def test_every_truncation_of_safetensors_is_refused(tmp_path, refused):
    save_file({"a": torch.ones(3, 5), "b": torch.ones(2)}, tmp_path / "whole.safetensors")
    whole = (tmp_path / "whole.safetensors").read_bytes()
    path = tmp_path / "cut.safetensors"
    for length in range(1, len(whole)):
        path.write_bytes(whole[:length])
        with refused(CheckpointDamagedError, "cut.safetensors", "copy or download it again"):
            open_checkpoint(path)


def test_nothing_there(tmp_path, refused):
    with refused(CheckpointNotFoundError, "gone.pt does not exist"):
        open_checkpoint(tmp_path / "gone.pt")


def test_a_folder_without_a_checkpoint(tmp_path, refused):
    (tmp_path / "config.json").write_text("{}")
    with refused(CheckpointNotFoundError, "holds no checkpoint", "model.safetensors"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "is empty"),
        (b"hello, this is no checkpoint at all", "is a text file, not a checkpoint"),
        ('{"é": 1, '.encode() * 60, "is a JSON file, not a checkpoint"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "Git LFS pointer"),
    ],
    ids=["empty", "text", "json", "lfs"],
)
def test_what_is_no_checkpoint(tmp_path, content, part, refused):
    path = tmp_path / "x.bin"
    path.write_bytes(content)
    with refused(CheckpointDamagedError, "x.bin", part):
        open_checkpoint(path)


def test_the_settings_of_a_model_are_no_truncated_checkpoint(tmp_path, refused):
    path = tmp_path / "config.json"
    path.write_text('{"architectures": ["BertModel"]}')
    with refused(CheckpointDamagedError, "config.json is the settings of a model", "the folder"):
        open_checkpoint(path)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path, refused):
    os.mkfifo(tmp_path / "pipe")
    with refused(CheckpointDamagedError, "not a regular file"):
        open_checkpoint(tmp_path / "pipe")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file(tmp_path, refused):
    path = tmp_path / "x.pt"
    torch.save({"a": torch.ones(2)}, path)
    path.chmod(0)
    with refused(CheckpointDamagedError, "cannot be read"):
        open_checkpoint(path)


def test_a_key_of_safetensors_is_refused(tmp_path, refused):
    save_file({"a": torch.ones(2)}, tmp_path / "x.safetensors")
    with refused(NotAStateDictError, '"model"', "leave the key out"):
        open_checkpoint(tmp_path / "x.safetensors", key="model")


def test_an_element_type_without_numpy_form(tmp_path, refused):
    packed = torch.zeros(2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    torch.save({"a": packed}, tmp_path / "x.pt")
    with refused(UnsupportedDtypeError, "a is a tensor of the element type float4_e2m1fn_x2"):
        open_checkpoint(tmp_path / "x.pt")


def test_a_folder_with_one_file_of_another_name(tmp_path, refused):
    torch.save({"a": torch.ones(2)}, tmp_path / "best.pth")
    assert open_checkpoint(tmp_path).read("a").tolist() == [1, 1]
    torch.save({"a": torch.ones(2)}, tmp_path / "last.pth")
    with refused(CheckpointNotFoundError, "best.pth, last.pth", "name the checkpoint file itself"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"GGUF" + b"\0" * 60, "a GGUF file"),
        (b"\x89HDF\r\n\x1a\n" + b"\0" * 60, "an HDF5 file"),
        (b"\x1f\x8b" + b"\0" * 60, "compressed by gzip"),
        (b"\0" * 257 + b"ustar" + b"\0" * 300, "a tar archive"),
    ],
)
def test_other_formats_are_named(tmp_path, content, part, refused):
    (tmp_path / "x.bin").write_bytes(content)
    with refused(CheckpointDamagedError, part, "save it again"):
        open_checkpoint(tmp_path / "x.bin")


def test_torch_is_not_needed(tmp_path):
    torch.save({"a": torch.ones(2)}, tmp_path / "zip.pt")
    torch.save({"a": torch.ones(2)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    save_file({"a": torch.ones(2)}, tmp_path / "x.safetensors")
    np.savez(tmp_path / "x.npz", a=np.ones(2))
    script = f"""
import pathlib, sys
from converters.checkpoint import open_checkpoint
for path in pathlib.Path({str(tmp_path)!r}).iterdir():
    assert open_checkpoint(path).read("a").tolist() == [1, 1]
print("torch" in sys.modules, "safetensors" in sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout == "False False\n"


@pytest.mark.parametrize("where", ["key", "entry", "other"])
def test_names_that_a_terminal_would_obey_are_refused(tmp_path, where, refused):
    bad = "a\x1b[2J"
    value = {
        "key": {bad: torch.ones(2)},
        "entry": {bad: {"a": torch.ones(2)}},
        "other": {"a": torch.ones(2), bad: 3},
    }[where]
    torch.save(value, tmp_path / "x.pt")
    with refused(CheckpointDamagedError, "unprintable characters: 'a\\x1b[2J'"):
        open_checkpoint(tmp_path / "x.pt")


@pytest.mark.parametrize(
    ("file", "part", "hint"),
    [
        ("net-Q4_K_M.gguf", "GGUF", "the checkpoint it was made from"),
        ("tf_model.h5", "HDF5", "weights of torch"),
        ("flax_model.msgpack", "Flax's own form", "needs no conversion"),
        ("model.onnx", "ONNX", "the checkpoint it was made from"),
        ("model.safetensors.incomplete", "has not ended", "download it again"),
        ("model_index.json", "a pipeline of diffusers", "name one of its folders"),
        ("zero_to_fp32.py", "DeepSpeed", "run it"),
        ("adapter_config.json", "an adapter of PEFT", "merge it"),
    ],
)
def test_what_a_folder_holds_instead_is_said(tmp_path, file, part, hint, refused):
    (tmp_path / file).write_bytes(b"anything")
    (tmp_path / "config.json").write_text("{}")
    with refused(CheckpointNotFoundError, file, part, hint):
        open_checkpoint(tmp_path)


def test_folders_in_it_that_hold_one_are_named(tmp_path, refused):
    (tmp_path / "logs").mkdir()
    (tmp_path / "checkpoint-500").mkdir()
    save_file({"a": torch.ones(2)}, tmp_path / "checkpoint-500" / "model.safetensors")
    with refused(CheckpointNotFoundError, "its folders checkpoint-500 do", "name one of them"):
        open_checkpoint(tmp_path)


def test_shards_without_their_index_are_not_the_checkpoint(tmp_path, refused):
    path = tmp_path / "model-00001-of-00002.safetensors"
    save_file({"a": torch.ones(2)}, path)
    with refused(CheckpointDamagedError, path.name, "one of 2 shards", "index.json"):
        open_checkpoint(tmp_path)
    assert list(open_checkpoint(path).infos) == ["a"]  # who names it means it
    path.rename(tmp_path / "model-00001-of-00001.safetensors")
    assert list(open_checkpoint(tmp_path).infos) == ["a"]


@pytest.mark.parametrize(
    "name",
    [
        "q.lora_A.weight",
        "q.lora_E",
        "lora_unet_q.lora_down.weight",
        "q.hada_w1_a",
        "q.lokr_w1",
        "q.oft_R.weight",
        "q.boft_s",
        "q.vera_lambda_b",
        "k.ia3_l",
        "norm.ln_tuning_layers.weight",
        "prompt_embeddings",
    ],
)
def test_adapters_are_said_to_be_a_part(name):
    (note,) = partial_checkpoint_notes("x.safetensors", ["norm.weight", name])
    assert note.startswith(f"{name} is an adapter's")


def test_models_are_no_part():
    names = ("base_model.model.norm.weight", "explora_A.weight", "soft_max.weight", "prompt.weight")
    assert partial_checkpoint_notes("model-00001-of-00001.safetensors", names) == []


def test_one_of_several_files_with_parts_of_each_array_is_refused(tmp_path, refused):
    torch.save({"a": torch.ones(2)}, tmp_path / "consolidated.00.pth")
    assert list(open_checkpoint(tmp_path).infos) == ["a"]
    torch.save({"a": torch.ones(2)}, tmp_path / "consolidated.01.pth")
    for name in ("consolidated.00.pth", "consolidated.01.pth"):
        with refused(CheckpointDamagedError, name, "parts of each array"):
            open_checkpoint(tmp_path / name)

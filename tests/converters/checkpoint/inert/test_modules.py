"""Whole modules, TorchScript and exported programs, read as their state dicts; nothing of them runs."""

import argparse
import io
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from converters.checkpoint import open_checkpoint
from converters.errors import CheckpointDamagedError, CheckpointHoldsCodeError, NotAStateDictError


class Net(nn.Module):
    restored = 0

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(4, 5))
        self.scale = nn.Parameter(torch.randn(3))
        self.register_buffer("kept", torch.ones(2))
        self.register_buffer("not_kept", torch.ones(2), persistent=False)
        self.register_parameter("none", None)
        self.tied = nn.Linear(4, 5, bias=False)
        self.tied.weight = self.head[1].weight
        self.plain = torch.ones(7)
        self.register_forward_hook(hook)

    def forward(self, x):
        return self.head(self.conv(x).mean((2, 3))) * self.kept[0] + self.tied(torch.ones(4))

    def __setstate__(self, state):
        Net.restored += 1
        super().__setstate__(state)


def hook(*_):
    """It does nothing, here or there."""


def same(checkpoint, state):
    assert list(checkpoint.infos) == list(state)
    for key, tensor in state.items():
        np.testing.assert_array_equal(checkpoint.read(key), tensor.numpy())


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("wrap", [lambda net: net, nn.DataParallel], ids=["bare", "DataParallel"])
def test_a_module_is_its_state_dict(tmp_path, zipped, wrap):
    net = Net()
    before = Net.restored
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.save(wrap(net), tmp_path / "x.pt", _use_new_zipfile_serialization=zipped)
    checkpoint = open_checkpoint(tmp_path / "x.pt")
    same(checkpoint, net.state_dict())
    assert checkpoint.shared == (("head.1.weight", "tied.weight"),)
    assert checkpoint.modules["conv"].kind == "torch.nn.modules.conv.Conv2d"
    assert checkpoint.modules["conv"].settings["kernel_size"] == (3, 3)
    assert checkpoint.modules["head"].children == ("0", "1")
    assert Net.restored == before


def test_a_module_in_a_training_checkpoint(tmp_path):
    net = Net()
    saved = {"epoch": 3, "model": net, "ema": None, "opt": argparse.Namespace(lr=0.1)}
    torch.save(saved, tmp_path / "x.pt")
    checkpoint = open_checkpoint(tmp_path / "x.pt")
    assert checkpoint.entry == "model"
    same(checkpoint, net.state_dict())
    assert checkpoint.options == {"opt": {"lr": 0.1}}
    assert checkpoint.unbuilt == ("argparse.Namespace",)


def test_two_modules_are_asked_for(tmp_path, refused):
    torch.save({"model": Net(), "ema": Net()}, tmp_path / "x.pt")
    with refused(NotAStateDictError, "--key: model, ema"):
        open_checkpoint(tmp_path / "x.pt")
    assert open_checkpoint(tmp_path / "x.pt", key="ema").entry == "ema"


def test_modules_in_a_list(tmp_path):
    net = Net()
    torch.save([net, argparse.Namespace(mean=3)], tmp_path / "x.pt")
    checkpoint = open_checkpoint(tmp_path / "x.pt")
    assert checkpoint.entry == "0"
    same(checkpoint, net.state_dict())


def test_a_module_that_holds_itself_is_refused(tmp_path, refused):
    net = nn.Sequential(nn.Linear(2, 3))
    net._modules["again"] = net
    torch.save(net, tmp_path / "x.pt")
    with refused(CheckpointDamagedError, "nested too deeply, or have no end"):
        open_checkpoint(tmp_path / "x.pt")


def scripted(net):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer torch deprecates making it
        file = io.BytesIO()
        torch.jit.save(torch.jit.script(net), file)
    return file.getvalue()


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
        self.register_buffer("k", torch.ones(2))

    def forward(self, x):
        return self.body(x) + torch.tensor([1.0, 2.0]).sum() * self.k[0]


def test_torchscript_is_its_state_dict(tmp_path):
    net = Plain()
    (tmp_path / "x.pt").write_bytes(scripted(net))
    checkpoint = open_checkpoint(tmp_path / "x.pt")
    assert set(checkpoint.infos) == set(net.state_dict())
    for key, tensor in net.state_dict().items():
        np.testing.assert_array_equal(checkpoint.read(key), tensor.numpy())
    assert checkpoint.modules["body.0"].kind == "torch.nn.modules.conv.Conv2d"
    assert not checkpoint.unbuilt


def test_the_code_of_torchscript_is_not_read(tmp_path, refused):
    new = io.BytesIO()
    with (
        zipfile.ZipFile(new, "w") as archive,
        zipfile.ZipFile(io.BytesIO(scripted(Plain()))) as old,
    ):
        for name in old.namelist():
            archive.writestr(name, b"import os" if "/code/" in name else old.read(name))
    (tmp_path / "x.pt").write_bytes(new.getvalue())
    assert "body.0.weight" in open_checkpoint(tmp_path / "x.pt").infos


def test_a_frozen_torchscript_has_no_names(tmp_path, refused):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.freeze(torch.jit.script(nn.Linear(3, 4).eval())).save(tmp_path / "x.pt")
    with refused(NotAStateDictError, "without tensors by name"):
        open_checkpoint(tmp_path / "x.pt")


def exported(net):
    return torch.export.export(net, (torch.ones(2, 3, 8, 8),))


def test_an_exported_program(tmp_path):
    net = Net()
    net._forward_hooks.clear()
    torch.export.save(exported(net), tmp_path / "x.pt2")
    checkpoint = open_checkpoint(tmp_path / "x.pt2")
    assert set(checkpoint.infos) == set(net.state_dict())
    for key, tensor in net.state_dict().items():
        np.testing.assert_array_equal(checkpoint.read(key), tensor.numpy())
    assert checkpoint.shared == (("head.1.weight", "tied.weight"),)
    assert checkpoint.modules["conv"].kind == "torch.nn.modules.conv.Conv2d"
    assert "not_kept" in checkpoint.training["constants"]


WRITTEN = sorted((Path(__file__).parents[1] / "written").glob("*.pt2"))


@pytest.mark.parametrize("file", WRITTEN, ids=lambda file: file.stem)
def test_what_other_versions_of_torch_exported(file):
    checkpoint = open_checkpoint(file)
    shapes = {"conv": (4, 3, 3, 3), "norm": (4,), "fc": (4, 4), "tied": (4, 4)}
    for layer, shape in shapes.items():
        weight = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) / 8
        np.testing.assert_array_equal(checkpoint.read(f"{layer}.weight"), weight)
        bias = np.arange(4, dtype=np.float32) / 8 - 1
        np.testing.assert_array_equal(checkpoint.read(f"{layer}.bias"), bias)
        assert checkpoint.modules[layer].kind.startswith("torch.nn.modules.")
    assert checkpoint.infos["gain"].dtype == "bfloat16"
    np.testing.assert_array_equal(checkpoint.read("gain").astype(np.float32), np.arange(4))
    np.testing.assert_array_equal(checkpoint.read("shift"), np.arange(4, dtype=np.float32) + 8)
    assert ("fc.weight", "tied.weight") in {tuple(sorted(keys)) for keys in checkpoint.shared}
    assert "kept_nowhere" in checkpoint.training["constants"]
    assert len(checkpoint.infos) == 13


def test_tensors_that_are_views_of_one_storage():
    """Their places are counted from where the storage begins, which none of them covers."""
    whole = np.arange(60, dtype=np.float32).reshape(10, 6)
    expected = {
        "rows": whole[1:6],
        "later": whole[3:9],
        "column": whole[:, 2],
        "turned": whole[2:8, ::2].T,
        "alone": np.arange(20, dtype=np.float32).reshape(5, 4)[2:, 1:3],
    }
    files = sorted((WRITTEN[0].parent / "views").glob("*.pt2"))
    assert files
    for file in files:
        checkpoint = open_checkpoint(file)
        assert checkpoint.infos.keys() == expected.keys()
        for key, value in expected.items():
            np.testing.assert_array_equal(checkpoint.read(key), value)


def test_what_was_compiled_is_said_to_be(tmp_path, refused):
    with zipfile.ZipFile(tmp_path / "x.pt2", "w") as archive:
        archive.writestr("x/archive_format", "pt2")
        archive.writestr("x/data/aotinductor/model/abc.wrapper.so", b"code")
    with refused(NotAStateDictError, "x.pt2 was compiled by AOTInductor"):
        open_checkpoint(tmp_path / "x.pt2")


OLDER = {
    "torch 2.5": ("serialized_state_dict.pt", "serialized_constants.pt"),
    "torch 2.2": ("serialized_state_dict.json", "serialized_constants.json"),
    "torch 2.8": ("x/data/weights/model.pt", "x/data/constants/model.pt"),
}


def saved(value):
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def older(names, weights):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x/archive_format" if "/" in names[0] else "version", "pt2")
        archive.writestr(names[0], weights)
        archive.writestr(names[1], saved({"c": torch.ones(2)}))
    return file.getvalue()


@pytest.mark.parametrize("names", OLDER.values(), ids=OLDER)
def test_the_forms_of_older_torch(tmp_path, names, refused):
    net = Net()
    (tmp_path / "x.pt2").write_bytes(older(names, saved(net.state_dict())))
    same(open_checkpoint(tmp_path / "x.pt2"), net.state_dict())
    (tmp_path / "x.pt2").write_bytes(older(names, saved({"x": eval})))
    with refused(CheckpointHoldsCodeError, "eval"):
        open_checkpoint(tmp_path / "x.pt2")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'{"as_int": 27}', b'{"as_int": 99}'),
        (b'"sizes": [{"as_int": 4}', b'"sizes": [{"as_int":99}'),
        (b'"path_name": "weight_0"', b'"path_name": "weight_9"'),
        (b'"as_int": 27', b'"as_str": 27'),
    ],
)
def test_a_list_of_weights_that_lies_is_refused(tmp_path, old, new, refused):
    net = Net()
    net._forward_hooks.clear()
    torch.export.save(exported(net), tmp_path / "x.pt2")
    data = (tmp_path / "x.pt2").read_bytes()
    assert old in data
    (tmp_path / "x.pt2").write_bytes(data.replace(old, new))
    with refused(CheckpointDamagedError, "x.pt2"):
        open_checkpoint(tmp_path / "x.pt2")

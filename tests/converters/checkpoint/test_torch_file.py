"""Files of torch.save: read without running code, refused by name where they are not weights."""

import argparse
import collections
import os
import pickle
import pickletools
import random
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from converters.checkpoint import open_checkpoint
from converters.errors import (
    CheckpointDamagedError,
    CheckpointHoldsCodeError,
    NotAStateDictError,
)

FORMS = pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])


class MakesMarker:
    """Unpickling this runs `touch MARKER`."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return (os.system, (f"touch {self.marker}",))


def state_dict():
    generator = torch.Generator().manual_seed(0)
    return {
        "weight": torch.randn(3, 5, generator=generator),
        "transposed": torch.randn(3, 5, generator=generator).T,
        "count": torch.tensor(7),
        "empty": torch.zeros(0, 4),
        "half": torch.randn(6, generator=generator).to(torch.bfloat16),
    }


def save(value, path, zipped=True):
    torch.save(value, path, _use_new_zipfile_serialization=zipped)
    return path


@FORMS
def test_reads_names_shapes_dtypes_and_values(tmp_path, zipped):
    tensors = state_dict()
    checkpoint = open_checkpoint(save(tensors, tmp_path / "a.pt", zipped))
    assert {key: (info.shape, info.dtype) for key, info in checkpoint.infos.items()} == {
        "weight": ((3, 5), "float32"),
        "transposed": ((5, 3), "float32"),
        "count": ((), "int64"),
        "empty": ((0, 4), "float32"),
        "half": ((6,), "bfloat16"),
    }
    for key, tensor in tensors.items():
        np.testing.assert_array_equal(
            checkpoint.read(key).astype(np.float64), tensor.double().numpy()
        )


@FORMS
def test_code_is_refused_and_not_run(tmp_path, zipped, refused):
    marker = tmp_path / "executed"
    path = save({"weight": torch.ones(2), "x": MakesMarker(marker)}, tmp_path / "evil.pt", zipped)
    with refused(CheckpointHoldsCodeError, "evil.pt", "system", "nothing was executed", "save"):
        open_checkpoint(path)
    assert not marker.exists()
    # The file is indeed loaded: a reader that unpickles it runs the command.
    torch.load(path, weights_only=False)
    assert marker.exists()


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_plain_pickle_with_code_is_refused_and_not_run(tmp_path, protocol, refused):
    marker = tmp_path / "executed"
    path = tmp_path / "evil.bin"
    path.write_bytes(pickle.dumps({"x": MakesMarker(marker)}, protocol=protocol))
    with refused(CheckpointHoldsCodeError, "evil.bin", "posix.system", "nothing was executed"):
        open_checkpoint(path)
    assert not marker.exists()


@FORMS
def test_every_truncation_is_refused(tmp_path, zipped, refused):
    whole = save(state_dict(), tmp_path / "whole.pt", zipped).read_bytes()
    path = tmp_path / "cut.pt"
    for length in [*range(1, 40), *range(40, len(whole), 37), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with refused(CheckpointDamagedError, "cut.pt"):
            open_checkpoint(path)


def test_a_training_checkpoint_is_refused_with_its_keys_named(tmp_path, refused):
    model = torch.nn.Linear(5, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 5)).sum().backward()
    optimizer.step()
    saved = {
        "epoch": 3,
        "model": model.state_dict(),
        "ema": collections.OrderedDict(weight=torch.ones(2)),
        "optimizer": optimizer.state_dict(),
    }
    path = save(saved, tmp_path / "training.pt")
    with refused(NotAStateDictError, "2 state dicts", "--key: model, ema"):
        open_checkpoint(path)
    with refused(NotAStateDictError, 'under "optimizer"', "choose model, ema"):
        open_checkpoint(path, key="optimizer")
    assert list(open_checkpoint(path, key="model").infos) == ["weight", "bias"]


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        ([torch.ones(2)], ["a list"]),
        (torch.ones(2), ["a Tensor"]),
        ({}, ["without tensors"]),
        ({"lr": 0.1}, ["without tensors"]),
        ({1: torch.ones(2)}, ["without tensors"]),
        ({"w": torch.ones(2), 1: torch.ones(2)}, ["'1' is not named by a string"]),
        ({"w": torch.ones(2, 2).to_sparse()}, ["w is a sparse"]),
        ({"w": torch.ones(2, device="meta")}, ["w is a tensor without data"]),
    ],
    ids=["list", "tensor", "empty", "numbers", "numbered", "half named", "sparse", "meta"],
)
def test_what_is_no_state_dict_is_refused(tmp_path, value, parts, refused):
    path = save(value, tmp_path / "x.pt")
    with refused(NotAStateDictError, "x.pt", *parts):
        open_checkpoint(path)


def test_a_key_in_a_plain_state_dict_is_refused(tmp_path, refused):
    path = save(state_dict(), tmp_path / "x.pt")
    with refused(NotAStateDictError, '"model"', "leave the key out"):
        open_checkpoint(path, key="model")


def test_names_that_python_2_wrote(tmp_path):
    """Its texts were strings of bytes, which pickles hold by another instruction."""
    torch.save({"layer.weight": torch.arange(3.0)}, tmp_path / "x.pt")
    with (
        zipfile.ZipFile(tmp_path / "x.pt") as old,
        zipfile.ZipFile(tmp_path / "y.pt", "w") as new,
    ):
        for name in old.namelist():
            content = old.read(name)
            new.writestr(name, _of_python_2(content) if name.endswith("data.pkl") else content)
    checkpoint = open_checkpoint(tmp_path / "y.pt")
    assert checkpoint.read("layer.weight").tolist() == [0, 1, 2]


def _of_python_2(pickled):
    steps = list(pickletools.genops(pickled))
    ends = [position for _, _, position in steps[1:]] + [len(pickled)]
    parts = []
    for (step, argument, start), end in zip(steps, ends, strict=True):
        text = argument.encode() if step.name == "BINUNICODE" else b""
        parts.append(b"U" + bytes([len(text)]) + text if text else pickled[start:end])
    assert b"U\x0clayer.weight" in parts
    return b"".join(parts)


@FORMS
def test_a_namespace_of_arguments_is_the_runs_options(tmp_path, zipped):
    saved = {"model": state_dict(), "args": argparse.Namespace(lr=0.1, layers=[2, 3])}
    checkpoint = open_checkpoint(save(saved, tmp_path / "fairseq.pt", zipped))
    assert list(checkpoint.infos) == list(state_dict())
    assert checkpoint.options == {"args": {"lr": 0.1, "layers": [2, 3]}}
    assert checkpoint.unbuilt == ("argparse.Namespace",)


@pytest.mark.parametrize("form", ["zip", "legacy"])
def test_as_torch_reads_it(tmp_path, form):
    """Random nested containers: what torch.load gives with weights_only, this gives too."""
    chance = random.Random(form)
    for number in range(40):
        value = {"model": {"w": torch.randn(2, 3)}, "rest": random_value(chance, 4)}
        path = save(value, tmp_path / f"{number}.pt", zipped=form == "zip")
        theirs = torch.load(path, weights_only=True)
        ours = open_checkpoint(path, key="model").training["rest"]
        assert same(ours, theirs["rest"])


def random_value(chance, depth):
    kinds = [
        lambda: chance.choice(
            [None, True, False, 0, -1, 300, 2**33, -(2**40), 0.5, "text", "ü" * 300]
        ),
        lambda: torch.Size([1, 2]),
        lambda: torch.randn(chance.randrange(4), 2).to(chance.choice([torch.float64, torch.int16])),
        lambda: bytes(chance.randrange(1, 5)),
        lambda: bytearray(b"x"),
        lambda: {1, 2, "a"},
        lambda: complex(1, 2),
        lambda: collections.Counter("aab"),
    ]
    deeper = [
        lambda: [random_value(chance, depth - 1) for _ in range(chance.randrange(4))],
        lambda: tuple(random_value(chance, depth - 1) for _ in range(chance.randrange(5))),
        lambda: {index: random_value(chance, depth - 1) for index in range(chance.randrange(4))},
        lambda: collections.OrderedDict(a=random_value(chance, depth - 1), b=1),
    ]
    return chance.choice(kinds if depth == 0 else kinds + 3 * deeper)()


def same(ours, theirs):
    if isinstance(theirs, torch.Tensor):
        return np.array_equal(ours.read(), theirs.numpy()) and ours.info.shape == theirs.shape
    if isinstance(theirs, dict):
        return list(ours) == list(theirs) and all(same(ours[key], theirs[key]) for key in theirs)
    if isinstance(theirs, list | tuple):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    return type(ours) is type(theirs) and ours == theirs

"""Objects that training checkpoints hold beside the weights: read as plain data, built never."""

import argparse
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import json
import pickle
import types
from pathlib import Path, PureWindowsPath

import numpy as np
import pytest
import torch

from converters.checkpoint import LazyTensor, open_checkpoint
from converters.checkpoint.formats.torch_names import find_name
from converters.checkpoint.inert.arrays import OtherArray
from converters.checkpoint.inert.options import plain
from converters.checkpoint.inert.records import Record
from converters.checkpoint.inert.unpickler import Unpickler


class Color(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Options:
    width: int = 3
    color: Color = Color.RED
    built = 0

    def __setstate__(self, state):
        Options.built += 1
        self.__dict__ = state


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    width: int = 3


class Config(dict):
    """As yacs' CfgNode."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.frozen = True


class Copied(dict):
    """As mmengine's ConfigDict: its class and a plain dict."""

    def __reduce_ex__(self, protocol):
        return Copied, (dict(self),)


class Read:
    """As mmengine's Config: its dict, and the file and the text that it was read from."""

    def __init__(self, content):
        self.content = content

    def __getstate__(self):
        return self.content, "config.py", "text"


class Queue(list):
    pass


Point = collections.namedtuple("Point", "x y")


class Node:
    """As OmegaConf's: a container of values that are wrapped one by one."""

    def __init__(self, content):
        self.__dict__ = {"_metadata": None, "_parent": None, "_content": content}


class Wrapped:
    def __init__(self, value):
        self.__dict__ = {"_metadata": None, "_parent": None, "_val": value}


VALUES = {
    "Namespace": (
        argparse.Namespace(lr=0.1, layers=[2, 3], out=Path("runs/1")),
        {"lr": 0.1, "layers": [2, 3], "out": "runs/1"},
    ),
    "SimpleNamespace": (types.SimpleNamespace(a=1), {"a": 1}),
    "slots": (Slotted(), [3]),
    "dict of a class": (Config(model=Config(width=3)), {"model": {"width": 3}}),
    "dict that is copied": (Copied(model=Copied(width=3)), {"model": {"width": 3}}),
    "mmengine": (Read(Copied(lr=0.1)), {"lr": 0.1}),
    "namedtuple": (Point(1, "a"), f"{__name__}.Point(1, 'a')"),
    "list of a class": (Queue([1, "a"]), [1, "a"]),
    "omegaconf": (
        Node({"a": Wrapped(1), "b": Node([Wrapped("x"), Wrapped(None)])}),
        {"a": 1, "b": ["x", None]},
    ),
    "NumPy numbers": (
        [np.float32(0.5), np.int64(-3), np.bool_(True), np.float16(2), np.complex64(1)],
        [0.5, -3, True, 2.0, "complex"],
    ),
    "NumPy text": (np.str_("ü"), "ü"),
    "path": (Path("/a/b"), "/a/b"),
    "relative path": (Path("a") / "b", "a/b"),
    "path of Windows": (PureWindowsPath("a", "b"), "a/b"),
    "date": (datetime.date(2024, 2, 29), "2024-02-29"),
    "time": (datetime.datetime(2024, 1, 2, 3, 4, 5, 6), "2024-01-02T03:04:05.000006"),
    "time of day": (datetime.time(3, 4, 5), "03:04:05"),
    "duration": (datetime.timedelta(days=1, seconds=2), 86402.0),
    "Fraction": (fractions.Fraction(1, 3), "1/3"),
    "Decimal": (decimal.Decimal("1.50"), "1.50"),
    "defaultdict": (collections.defaultdict(list, a=[1]), {"a": [1]}),
    "deque": (collections.deque([1, 2], maxlen=5), [1, 2]),
    "range": (range(0, 10, 2), "range(0, 10, 2)"),
    "slice": (slice(1, 2), "slice(1, 2, None)"),
    "partial": (
        functools.partial(max, 0, key=abs),
        "functools.partial(builtins.max, 0, key='builtins.abs')",
    ),
    "set of tuples": ([{(1, "a")}, {None}, {True}], [[[1, "a"]], [None], [True]]),
    "frozenset as a key": (
        {frozenset({1}): 2, 3j: 4},
        {"frozenset([1])": 2, "complex('complex')": 4},
    ),
    "frozenset": (frozenset({1}), [1]),
    "class": (Options, f"{__name__}.Options"),
}


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(("value", "read"), VALUES.values(), ids=VALUES)
def test_known_values_are_plain_data(value, read, protocol):
    if protocol < 2 and isinstance(value, Slotted):
        pytest.skip("it cannot be pickled so")
    data = pickle.dumps(value, protocol)
    got = plain(Unpickler(data, 0, find_name).load())
    assert json.loads(json.dumps(got)) == read


def test_a_dataclass_is_not_built():
    read = Unpickler(pickle.dumps(Options(width=5)), 0, find_name).load()
    assert plain(read)["width"] == 5
    assert "Color" in plain(read)["color"]
    assert Options.built == 0


@pytest.mark.parametrize("called", ["datetime.date", "collections.deque", "builtins.set"])
def test_what_plain_values_are_not_known_to_be_made_of_is_a_record(called):
    """Nothing but it is lost: the weights beside it are read."""
    module, _, name = called.rpartition(".")
    pickled = b"\x80\x02c%s\n%s\nG%s\x85R." % (module.encode(), name.encode(), bytes(8))
    made = Unpickler(pickled, 0, find_name).load()
    assert type(made) is Record
    assert plain(made) == f"{called.removeprefix('builtins.')}(0.0)"


@pytest.mark.parametrize("protocol", range(6))
def test_arrays_are_lazy_tensors(tmp_path, protocol):
    arrays = {
        "f4": np.arange(6, dtype="f4").reshape(2, 3),
        "fortran": np.asfortranarray(np.arange(6, dtype="f8").reshape(2, 3)),
        "large": np.arange(400_000, dtype="f4").reshape(1000, 400),
        "empty": np.zeros((0, 3), "i8"),
        "bool": np.array([True, False]),
        "half": np.ones(3, "f2"),
    }
    path = tmp_path / "x.pkl"
    path.write_bytes(pickle.dumps({"model": arrays, "__author__": "x"}, protocol))
    checkpoint = open_checkpoint(path)
    assert checkpoint.entry == "model"
    assert list(checkpoint.infos) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(checkpoint.read(name), array)
        assert checkpoint.read(name).dtype == array.dtype


def test_an_array_that_is_shared_is_one(tmp_path):
    one = np.ones((2, 3), "f4")
    path = tmp_path / "x.pkl"
    path.write_bytes(pickle.dumps({"a": one, "b": one}))
    assert open_checkpoint(path).shared == (("a", "b"),)


@pytest.mark.parametrize(
    "array",
    [
        np.array([Options(), None], dtype=object),
        np.array(["a", "b"]),
        np.zeros(2, "M8[s]"),
        np.zeros(2, [("a", "f4"), ("b", "i4")]),
        np.zeros(2, ">f4"),
    ],
    ids=["objects", "texts", "dates", "fields", "another machine's"],
)
def test_other_arrays_are_named_and_do_not_matter(tmp_path, array):
    assert isinstance(Unpickler(pickle.dumps(array), 0, find_name).load(), OtherArray)
    torch.save({"w": torch.ones(2, 3), "x": array}, tmp_path / "x.pt")
    checkpoint = open_checkpoint(tmp_path / "x.pt")
    assert list(checkpoint.infos) == ["w"]
    assert checkpoint.others["x"].startswith("array of")


@pytest.mark.parametrize("protocol", range(2, 6))
def test_pickled_tensors(tmp_path, protocol):
    base = torch.randn(300_000)
    weights = {"a": torch.randn(3, 5), "b": base[2:8].view(2, 3).T, "c": torch.ones(2).bfloat16()}
    path = tmp_path / "x.pkl"
    path.write_bytes(pickle.dumps(collections.OrderedDict(weights), protocol))
    checkpoint = open_checkpoint(path)
    for name, tensor in weights.items():
        assert (checkpoint.read(name).astype("f4") == tensor.float().numpy()).all()


def test_the_options_of_a_run_and_what_was_not_built(tmp_path):
    saved = {
        "model": {"w": torch.ones(2, 3)},
        "args": argparse.Namespace(lr=0.1, model="vit", mean=np.ones(3)),
        "config": {"width": 3, "act": functools.partial(max, 0)},
        "options": Options(),
        "best": np.float64(0.5),
        "optimizer": {"state": {}, "param_groups": [{"lr": np.float32(0.1), "params": [0]}]},
    }
    torch.save(saved, tmp_path / "x.pt")
    checkpoint = open_checkpoint(tmp_path / "x.pt")
    assert checkpoint.entry == "model"
    assert checkpoint.options["args"] == {"lr": 0.1, "model": "vit", "mean": "tensor 3 float64"}
    assert checkpoint.options["config"]["width"] == 3
    assert checkpoint.options["options"]["width"] == 3
    assert set(checkpoint.options) == {"args", "config", "options"}
    # Of an enumeration Python 3.11.2 pickles the member by its name.
    unbuilt = [name.removesuffix(".RED") for name in checkpoint.unbuilt]
    assert unbuilt == ["argparse.Namespace", f"{__name__}.Options", f"{__name__}.Color"]
    assert checkpoint.training["best"] == 0.5
    assert Options.built == 0


def test_options_that_hold_themselves_end():
    looped = argparse.Namespace(a=1)
    looped.again = [looped] * 50
    read = plain(Unpickler(pickle.dumps(looped), 0, find_name).load())
    assert read["a"] == 1
    assert len(json.dumps(read)) < 1_000_000


def test_weights_inside_of_an_object(tmp_path):
    """An average that a class of one's own keeps."""
    average = types.SimpleNamespace(decay=0.9, shadow={"w": torch.ones(2, 3)})
    torch.save({"epoch": 3, "ema": average}, tmp_path / "x.pt")
    checkpoint = open_checkpoint(tmp_path / "x.pt")
    assert checkpoint.entry == "ema.shadow"
    assert isinstance(checkpoint.training["ema"], dict)
    assert not any(isinstance(value, LazyTensor) for value in checkpoint.training["ema"].values())

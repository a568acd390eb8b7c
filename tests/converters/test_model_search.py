"""`--model net.py`: the class whose model has the checkpoint's keys and shapes."""

import pytest
import torch
from torch import nn

from converters.checkpoint.reader import TensorInfo
from converters.errors import ModelLoadError
from converters.model_search import find_model

NETS = """
from dataclasses import dataclass
import torch
from torch import nn
from torch.nn import Linear

@dataclass
class Config:
    width: int = 5

class Small(nn.Module):
    def __init__(self, width=3):
        super().__init__()
        self.fc = nn.Linear(width, 4)

class Large(nn.Module):
    def __init__(self, *layers, **options):
        super().__init__()
        self.fc = nn.Linear(7, 4)
        self.register_buffer("ids", torch.arange(3), persistent=False)

class Configured(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed = nn.Embedding(11, config.width)
        self.head = nn.Linear(config.width, 11, bias=False)
        self.head.weight = self.embed.weight

class Annotated(nn.Module):
    def __init__(self, setup: Config):
        super().__init__()
        self.out = nn.Linear(setup.width, 2)

class Block(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.fc = nn.Linear(width, 4)

class Broken(nn.Module):
    def __init__(self):
        super().__init__()
        raise RuntimeError("no data")
"""


@pytest.fixture
def net(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NETS)
    return "net.py"


def shapes(**of):
    return {key.replace("__", "."): TensorInfo(shape, "float32") for key, shape in of.items()}


@pytest.mark.parametrize(
    ("name", "infos"),
    [
        ("Small", shapes(fc__weight=(4, 3), fc__bias=(4,))),
        ("Large", shapes(fc__weight=(4, 7), fc__bias=(4,))),
        ("Configured", shapes(embed__weight=(11, 5), head__weight=(11, 5))),
        ("Configured", shapes(head__weight=(11, 5))),  # tied: one of the two is enough
        ("Annotated", shapes(out__weight=(2, 5), out__bias=(2,))),
    ],
)
def test_the_one_class_that_fits(net, name, infos):
    found = find_model(net, infos)
    assert type(found.model).__name__ == name
    assert (found.name, found.searched) == (f"net.py:{name}", True)
    assert all(parameter.is_meta for parameter in found.model.parameters())


def test_a_named_factory_is_not_searched(net):
    found = find_model("net.py:Small", {})
    assert (type(found.model).__name__, found.searched) == ("Small", False)


def test_none_fits(net, refused):
    with refused(
        ModelLoadError,
        "no class of net.py",
        "Small (1 other shapes, as fc.weight is (4, 3) here, (4, 9) there)",
        "Configured (lacks 2 keys of the checkpoint, as fc.weight, has 1 keys more, as embed.weight)",
        "Block (needs arguments)",
        "Broken (cannot be built",
        "no data",
        "net.py:NAME",
    ):
        find_model(net, shapes(fc__weight=(4, 9), fc__bias=(4,)))


def test_several_fit(net, refused):
    with open(net, "a") as file:
        file.write("\n\nclass Same(Small):\n    pass\n\n\nAlias = Small\n")
    with refused(ModelLoadError, "several classes", "Small, Same"):
        find_model(net, shapes(fc__weight=(4, 3), fc__bias=(4,)))


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("x = 1\n", "has no nn.Module"),
        ("import gone_away\n", "gone_away"),
        ("class (\n", "SyntaxError"),
    ],
)
def test_files_without_a_class(tmp_path, monkeypatch, text, part, refused):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.py").write_text(text)
    with refused(ModelLoadError, part):
        find_model("other.py", {})


def test_no_file(refused):
    with refused(ModelLoadError, "no file gone.py"):
        find_model("gone.py", {})


def test_torchs_own_checkpoint(net):
    model = nn.Module()
    model.fc = nn.Linear(3, 4)
    infos = {k: TensorInfo(tuple(v.shape), "float32") for k, v in model.state_dict().items()}
    assert find_model(net, infos).name == "net.py:Small"
    assert torch.get_default_device() == torch.device("cpu")

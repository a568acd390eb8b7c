"""Building the model that a user names, or that a config.json describes."""

import json
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

from converters.errors import ModelLoadError
from converters.model import describe_config, in_package, load_config_model, load_model

NETS = """
import dataclasses
from sibling import WIDTH
from torch import nn
import torch

@dataclasses.dataclass
class Config:
    width: int = WIDTH

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, Config().width)
        self.head = nn.Linear(Config().width, 7)
        self.head.weight = self.embed.weight
        self.register_buffer("ids", torch.arange(3), persistent=False)

def reads_values():
    rates = [rate.item() for rate in torch.linspace(0, 1, 3)]
    return nn.Sequential(*(nn.Dropout(rate) for rate in rates), nn.Linear(2, 3))

class Made:
    @staticmethod
    def small():
        return nn.Linear(2, 3)

ready = nn.Linear(4, 5)
number = 7

def raises():
    raise RuntimeError("no such\\nsize")

def leaves():
    raise SystemExit("usage: nets.py")

def not_a_module():
    return [1]
"""


@pytest.fixture
def nets(tmp_path, monkeypatch):
    (tmp_path / "nets_of_test.py").write_text(NETS)
    (tmp_path / "sibling.py").write_text("WIDTH = 5\n")
    monkeypatch.chdir(tmp_path)
    for name in ("nets_of_test", "sibling"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


@pytest.mark.parametrize("location", ["nets_of_test", "nets_of_test.py"])
def test_a_module_or_a_file(nets, location):
    path = sys.path.count(str(nets))
    model = load_model(f"{location}:Net")
    # torch itself may add to the path, at its first draw on meta.
    assert sys.path.count(str(nets)) == path
    assert model.embed.weight.shape == (7, 5)
    assert model.embed.weight.is_meta  # nothing is allocated
    assert model.head.weight is model.embed.weight  # ties survive
    assert model._non_persistent_buffers_set == {"ids"}


def test_a_file_elsewhere(nets, monkeypatch):
    (nets / "sub").mkdir()
    monkeypatch.chdir(nets / "sub")
    assert load_model("../nets_of_test.py:Net").embed.num_embeddings == 7


@pytest.mark.parametrize("location", ["pack/net.py", "pack/deep/net.py"])
def test_a_file_of_a_package_is_imported_as_a_part_of_it(tmp_path, monkeypatch, location):
    monkeypatch.chdir(tmp_path)
    for width in (3, 4):  # a package of the same name elsewhere is another one
        folder = tmp_path / str(width) / "pack"
        (folder / "deep").mkdir(parents=True)
        for package in (folder, folder / "deep"):
            (package / "__init__.py").touch()
        (folder / "sizes.py").write_text(f"WIDTH = {width}\n")
        layer = "from torch import nn\ndef Net(): return nn.Linear(WIDTH, 1)\n"
        (folder / "net.py").write_text(f"from .sizes import WIDTH\n{layer}")
        (folder / "deep" / "net.py").write_text(f"from ..sizes import WIDTH\n{layer}")
        assert load_model(f"{width}/{location}:Net").in_features == width
    assert "pack" not in sys.modules
    assert in_package(folder / "deep" / "net.py") == "pack.deep.net"
    assert not in_package(folder / "sizes.py")


def test_other_factories(nets):
    assert isinstance(load_model("nets_of_test.py:Made.small"), nn.Linear)
    assert load_model("nets_of_test.py:ready").out_features == 5
    assert len(load_model("nets_of_test.py:reads_values")) == 4  # not possible on meta


def test_a_file_does_not_replace_an_installed_module(nets):
    Path("json.py").write_text("from torch import nn\nNet = nn.Identity\n")
    assert isinstance(load_model("json.py:Net"), nn.Identity)
    assert sys.modules["json"] is json


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        ("Net", "pkg.mod:factory"),
        ("nets_of_test.py:", "pkg.mod:factory"),
        ("gone.py:Net", "no file gone.py; check the path"),
        ("nets_of_tests.py:Net", "no file nets_of_tests.py; did you mean nets_of_test.py?"),
        ("no_such_package.mod:Net", "no module no_such_package.mod in the current directory"),
        (
            "imports.py:Net",
            "No module named 'no_such_package'); run the command where these imports",
        ),
        ("nets_of_test.py:Gone", "has no Gone; it defines "),
        ("nets_of_test.py:raisse", "has no raisse; did you mean raises?"),
        ("nets_of_test.py:Made.smal", "has no Made.smal"),
        ("nets_of_test.py:raises", "RuntimeError: no such size"),
        ("nets_of_test.py:leaves", "SystemExit: usage"),
        ("nets_of_test.py:not_a_module", "is a list, not an nn.Module"),
        ("nets_of_test.py:number", "int"),
        ("broken.py:Net", "SyntaxError"),
    ],
)
def test_what_cannot_be_built(nets, spec, part, refused):
    (nets / "broken.py").write_text("class Net(:\n")
    (nets / "imports.py").write_text("import no_such_package\n")
    with refused(ModelLoadError, part):
        load_model(spec)


def write_config(folder, **values):
    (folder / "config.json").write_text(json.dumps(values))
    return folder


SMALL = {"vocab_size": 31, "hidden_size": 6, "num_hidden_layers": 1, "num_attention_heads": 2}


def test_the_architecture_of_a_config(tmp_path):
    folder = write_config(tmp_path, model_type="bert", architectures=["BertForMaskedLM"], **SMALL)
    model = load_config_model(folder)
    assert type(model).__name__ == "BertForMaskedLM"
    assert all(parameter.is_meta for parameter in model.parameters())
    assert torch.get_default_device() == torch.device("cpu")


def test_a_config_without_architecture(tmp_path):
    folder = write_config(tmp_path, model_type="bert", **SMALL)
    assert type(load_config_model(folder)).__name__ == "BertModel"


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"model_type": "bert", "architectures": ["MyOwnBert"]}, "MyOwnBert"),
        ({"model_type": "bert", "architectures": ["AutoConfig"]}, "AutoConfig"),
        ({"model_type": "no-such-type"}, "no-such-type"),
        ({"auto_map": {"AutoModel": "own.M"}}, "has no model type None (its repository has code"),
        ({"model_type": "bert", "num_attention_heads": 5, "hidden_size": 6}, "building"),
    ],
)
def test_a_config_that_describes_no_model(tmp_path, values, part, refused):
    with refused(ModelLoadError, "config.json", part):
        load_config_model(write_config(tmp_path, **values))


def test_a_config_of_no_library(tmp_path):
    """As huggingface_hub's mixin writes it, with the arguments of a class of one's own."""
    folder = write_config(tmp_path, in_channels=3, out_channels=[8, 16])
    assert load_config_model(folder) is None
    assert describe_config(folder).endswith("config.json names no known model")


def test_a_config_of_timm_without_timm(tmp_path, monkeypatch):
    monkeypatch.setattr("converters.model.is_installed", lambda _: False)
    folder = write_config(tmp_path, architecture="resnet18", num_classes=10)
    assert load_config_model(folder) is None
    assert "a model of timm, which is not installed" in describe_config(folder)


def test_a_config_of_timm(tmp_path, monkeypatch):
    """Its factory is told what describes the model, and nothing that would have it load weights."""
    asked = []

    def create_model(name, **options):
        asked.append((name, options))
        return torch.nn.Linear(2, 3)

    timm = ModuleType("timm")
    timm.create_model = create_model
    timm.__spec__ = ModuleSpec("timm", None)
    monkeypatch.setitem(sys.modules, "timm", timm)
    told = {
        "url": "https://example.org/x",
        "file": "x.pth",
        "global_pool": "avg",
        "num_classes": 1000,
    }
    folder = write_config(
        tmp_path,
        architecture="resnet18",
        num_classes=10,
        pretrained_cfg=told,
        model_args={"in_chans": 1, "checkpoint_path": "evil.pt", "pretrained": True},
    )
    assert isinstance(load_config_model(folder), torch.nn.Linear)
    cfg = {"num_classes": 10, "global_pool": "avg"}
    assert asked == [("resnet18", {"pretrained_cfg": cfg, "in_chans": 1})]
    write_config(tmp_path, architecture="hf-hub:org/name")
    assert load_config_model(folder) is None


def test_a_folder_that_timm_wrote(tmp_path):
    timm = pytest.importorskip("timm")
    net = timm.create_model("vit_tiny_patch16_224", num_classes=10, depth=1, global_pool="avg")
    timm.models.save_for_hf(net, tmp_path, model_args={"depth": 1}, safe_serialization=True)
    model = load_config_model(tmp_path)
    found = {key: value.shape for key, value in model.state_dict().items()}
    assert found == {key: value.shape for key, value in net.state_dict().items()}


def test_a_damaged_config(tmp_path, refused):
    (tmp_path / "config.json").write_text('{"model_type": ')
    with refused(ModelLoadError, "config.json"):
        load_config_model(tmp_path)


def test_code_in_the_folder_is_not_run(tmp_path, refused):
    (tmp_path / "own.py").write_text("import pathlib\npathlib.Path('executed').touch()\n")
    folder = write_config(
        tmp_path, model_type="own", auto_map={"AutoConfig": "own.C", "AutoModel": "own.M"}
    )
    with refused(ModelLoadError, "config.json"):
        load_config_model(folder)
    assert not Path("executed").exists()

"""The layers that a file of a whole module tells of: the layouts are those with the class at hand."""

import copy
import re
import warnings

import pytest
import torch
from torch import nn

from converters import plan
from converters.mapping import Outcome
from converters.planning import planned
from converters.request import PlanOptions


class Subclass(nn.Conv2d):
    pass


class Scaled(nn.Linear):
    pass


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 4))
        self.register_buffer("table", torch.ones(2))
        self.register_buffer("computed", torch.ones(2), persistent=False)


class Block(nn.Sequential):
    pass


class Everything(nn.Module):
    def __init__(self):
        super().__init__()
        self.subclass = Subclass(3, 8, 3, padding=1)
        self.depthwise = nn.Conv2d(8, 8, 3, groups=8)
        self.seq = nn.Sequential(nn.Conv2d(8, 8, 1), nn.ReLU(), nn.BatchNorm2d(8))
        self.block = Block(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 4))
        self.up = nn.ConvTranspose2d(8, 8, 2, 2, groups=2, bias=False)
        self.square = nn.ConvTranspose1d(8, 8, 3)
        self.attention = nn.MultiheadAttention(8, 2)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 4, 16, batch_first=True), 2
        )
        self.lstm = nn.LSTM(8, 5, 2, bidirectional=True)
        self.gru = nn.GRU(8, 5, bias=False)
        self.cell = nn.GRUCell(3, 4)
        self.embedding = nn.Embedding(10, 8)
        self.bag = nn.EmbeddingBag(5, 6)
        self.norm = nn.LayerNorm((4, 8))
        self.rms = nn.RMSNorm(8)
        self.group = nn.GroupNorm(2, 8)
        self.instance = nn.InstanceNorm2d(8, affine=True)
        self.own = Own()
        self.list = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.dict = nn.ModuleDict({"a": nn.Linear(2, 3)})
        self.parameters_ = nn.ParameterList([nn.Parameter(torch.ones(2, 3))])
        self.prelu = nn.PReLU(4)
        self.bilinear = nn.Bilinear(2, 3, 4)
        self.head = nn.Linear(8, 10, bias=False)
        self.head.weight = self.embedding.weight
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.weight_normed = nn.utils.weight_norm(nn.Conv1d(3, 4, 3))
            self.spectral_normed = nn.utils.spectral_norm(nn.Linear(3, 4))


def rows(made):
    return {row.key: (row.outcome, row.targets, row.kind, row.note) for row in made.rows}


@pytest.fixture
def file(tmp_path):
    def save(net):
        torch.save(net, tmp_path / "x.pt")
        return tmp_path / "x.pt"

    return save


@pytest.mark.parametrize("api", ["linen", "nnx"])
@pytest.mark.parametrize(
    "net",
    [
        Everything,
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d((2, 3)), nn.Flatten(), nn.Linear(24, 5)
        ),
    ],
    ids=["every layer", "a flattened convolution"],
)
def test_layouts_are_those_of_the_class(file, net, api):
    module = net()
    got = plan(file(module), to=api)
    assert rows(got) == rows(plan(module.state_dict(), model=module, to=api))
    evidence = {row.evidence for row in got.mapped}
    assert all(one.startswith("certain: ") and one.endswith(" in the file") for one in evidence)


def test_what_a_class_alone_says_is_asked(file):
    """A Linear of one's own class has nothing that a look-alike lacks."""
    path = file(nn.Sequential(Scaled(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    made = plan(path)
    assert [row.key for row in made.refused] == ["0.weight", "0.bias"]
    assert "but its class is unknown" in made.refused[0].note
    (option,) = set(re.findall(r"--assume '(.*?)=Linear or Parameter'", made.refused[0].note))
    said = plan(path, assume=[f"{option}=Linear"])
    truth = plan(
        {"0.weight": torch.ones(4, 3), "0.bias": torch.ones(4)},
        model=nn.Sequential(nn.Linear(3, 4)),
    )
    assert {row.path for row in truth.mapped} <= {row.path for row in said.mapped}
    kept = plan(path, assume=[f"{option}=Parameter"])
    assert next(row for row in kept.mapped if row.key == "0.weight").kind == "Parameter"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda net: net[0].__dict__.pop("in_channels"),
        lambda net: net[0].__dict__.update(groups="many"),
        lambda net: net[1].__dict__.update(num_heads=3),
        lambda net: net[2].__dict__.update(num_layers=1 << 40),
        lambda net: net[0].__dict__.update(kernel_size=3),
        lambda net: net[3].__dict__.update(in_features=[]),
    ],
)
def test_settings_that_are_not_a_layers_are_refused(file, spoil):
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.MultiheadAttention(8, 2), nn.LSTM(3, 4), nn.Linear(3, 4)
    )
    spoil(net)
    made = plan(file(net))
    assert {row.outcome for row in made.rows} <= set(Outcome)


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("layer", [nn.Conv1d(3, 4, 3), Scaled(3, 4)], ids=["torch's", "one's own"])
@pytest.mark.parametrize(
    "spoil",
    [
        lambda layer: layer._parameters.update(weight_g=None),
        lambda layer: layer._parameters.pop("weight_v"),
        lambda layer: layer.__dict__.update(weight_v=3, _parameters={"bias": layer.bias}),
        lambda layer: next(iter(layer._forward_pre_hooks.values())).__dict__.update(name=3),
        lambda layer: next(iter(layer._forward_pre_hooks.values())).__dict__.update(dim="x"),
    ],
)
def test_a_norm_of_weights_without_its_tensors_is_refused(file, layer, spoil):
    net = nn.Sequential(nn.utils.weight_norm(copy.deepcopy(layer)))
    spoil(net[0])
    made = plan(file(net))
    assert all(row.outcome in (Outcome.MAPPED, Outcome.REFUSED) for row in made.rows)
    assert not any(row.key == "0.weight_v" and row.kind == "Conv" for row in made.mapped)


def test_a_saved_mapping_says_what_the_file_says(file, tmp_path):
    from converters.mapping.file import save_mapping

    net = nn.Sequential(
        nn.ConvTranspose2d(4, 4, 2, groups=2, bias=False), nn.MultiheadAttention(8, 2)
    )
    path = file(net)
    save_mapping(plan(path), tmp_path / "m.yaml", "linen", False)
    text = (tmp_path / "m.yaml").read_text()
    assert "certain: torch.nn.modules.conv.ConvTranspose2d in the file" in text
    torch.save(net.state_dict(), tmp_path / "y.pt")
    again = plan(tmp_path / "y.pt", mapping=tmp_path / "m.yaml")
    assert {row.path for row in again.mapped} == {row.path for row in plan(path).mapped}


def test_the_classes_of_torchscript_are_certain(tmp_path):
    net = nn.Sequential(nn.ConvTranspose2d(4, 4, 2), nn.ReLU(), nn.Linear(4, 4), nn.LayerNorm(4))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(net).save(tmp_path / "x.pt")
    got = plan(tmp_path / "x.pt")
    truth = plan(net.state_dict(), model=net)
    assert {row.key: row.targets for row in got.rows} == {
        row.key: row.targets for row in truth.rows
    }
    assert {row.evidence.partition(":")[0] for row in got.rows} == {"certain"}


def test_the_wrapper_of_several_gpus_is_left_out(file):
    net = nn.Sequential(nn.Linear(3, 4))
    made = planned(file(nn.DataParallel(net)), PlanOptions())
    assert list(made.checkpoint.infos) == ["0.weight", "0.bias"]

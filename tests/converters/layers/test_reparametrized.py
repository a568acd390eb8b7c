"""Weights that a layer computes from others: kept apart, or computed by torch, or refused."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from converters import convert, load_pytree
from converters.errors import MisfitError
from converters.layers.reparametrized_cases import COMPUTED, EXACT
from converters.layers.text import parse_join
from converters.mapping.module_tree import Outcome, read_slots
from converters.reverse import to_state_dict
from tests.converters.layers.forward import compare_forward


@pytest.mark.parametrize("case", EXACT, ids=lambda case: case.name)
def test_both_tensors_are_kept(case):
    comparison = compare_forward(None, case)
    assert comparison.misfits == ()
    assert comparison.agrees(1e-6), comparison
    assert comparison.lost == {"linen": (), "nnx": ()}


def test_the_rows_say_which_layer_computes_with_both():
    layer = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.LSTM(2, 3), "weight_hh_l0"))
    notes = {key: slot.note for key, slot in read_slots(layer).items()}
    assert notes["0.parametrizations.weight_hh_l0.original0"] == (
        "converters.modules: WeightNorm around the layer; converters.modules: LSTM"
    )
    assert notes["0.weight_ih_l0"] == "converters.modules: LSTM"


@pytest.mark.parametrize("case", COMPUTED, ids=lambda case: case.name)
def test_torch_computes_the_weight(case):
    """The way back is not in the result: what torch had has to travel beside it."""
    comparison = compare_forward(None, case)
    assert comparison.misfits == ()
    assert comparison.agrees(1e-6), comparison
    assert all(comparison.lost.values())
    slots = read_slots(case.torch(nn))
    joined = [slot for slot in slots.values() if str(slot.targets[0].join).startswith("computed(")]
    assert len(joined) >= 2
    assert all("computed by torch" in slot.note for slot in joined)


class Doubled(nn.Module):
    def forward(self, weight):
        return 2 * weight


class FromOutside(nn.Module):
    """Depends on a tensor that is in no state dict, so that a model without values has none."""

    def __init__(self):
        super().__init__()
        self.outside = torch.ones(3, 2)

    def forward(self, weight):
        if weight.is_meta:
            raise RuntimeError("no values here")
        return weight * self.outside


def test_a_users_parametrization_is_computed():
    layer = nn.Linear(2, 3)
    parametrize.register_parametrization(layer, "weight", Doubled())
    slot = read_slots(nn.Sequential(layer))["0.parametrizations.weight.original"]
    (target,) = slot.targets
    assert target.path == "params/layers_0/kernel"
    given = np.arange(6, dtype=np.float32).reshape(3, 2)
    np.testing.assert_array_equal(target.join.apply([given]), 2 * given.T)
    assert target.join.shape([(3, 2)]) == (2, 3)


def test_bfloat16_is_computed_in_bfloat16():
    layer = nn.Linear(2, 3, dtype=torch.bfloat16)
    parametrize.register_parametrization(layer, "weight", Doubled())
    slot = read_slots(layer)["parametrizations.weight.original"]
    from converters.checkpoint.dtypes import torch_to_numpy

    given = torch_to_numpy(torch.randn(3, 2, dtype=torch.bfloat16), "given")
    made = slot.targets[0].join.apply([given])
    assert made.dtype.name == "bfloat16"
    np.testing.assert_array_equal(made.astype(np.float32), 2 * given.T.astype(np.float32))


def test_what_torch_cannot_compute_alone_is_refused():
    layer = nn.Linear(2, 3)
    parametrize.register_parametrization(layer, "weight", FromOutside())
    slots = read_slots(nn.Sequential(layer))
    assert {slot.outcome for slot in slots.values()} == {Outcome.REFUSED}
    note = slots["0.parametrizations.weight.original"].note
    assert "torch cannot compute weight (FromOutside) from its tensors alone" in note


def test_a_users_own_module_keeps_its_names():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.ones(3, 2))
            self.gain = nn.Parameter(torch.ones(2))

    own = nn.utils.parametrizations.weight_norm(Own(), "table")
    paths = {
        key: slot.targets[0].path for key, slot in read_slots(nn.ModuleDict({"own": own})).items()
    }
    assert paths == {
        "own.gain": "params/own/gain",
        "own.parametrizations.table.original0": "params/own/table_g",
        "own.parametrizations.table.original1": "params/own/table_v",
    }


def test_what_is_computed_has_a_form_that_says_its_shape():
    layer = nn.Sequential(nn.utils.parametrizations.orthogonal(nn.Linear(2, 3)))
    join = read_slots(layer)["0.parametrizations.weight.original"].targets[0].join
    assert str(join) == "computed(2, 3)"
    parsed = parse_join(str(join))
    assert (parsed.shape([]), str(parsed)) == ((2, 3), str(join))
    assert parsed.split(np.zeros((2, 3)), []) is None
    with pytest.raises(ValueError, match="without the model"):
        parsed.apply([])


@pytest.fixture
def computed(tmp_path):
    """A converted model of which torch computed two weights."""
    model = nn.Sequential(nn.utils.parametrizations.orthogonal(nn.Linear(2, 3)), nn.Linear(3, 4))
    parametrize.register_parametrization(model[1], "weight", Doubled())
    torch.save(model.state_dict(), tmp_path / "model.pt")
    convert(tmp_path / "model.pt", model=model, output=tmp_path / "model.flax.safetensors")
    return model, tmp_path


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_the_way_back_gives_what_it_was_computed_from(computed, dtype):
    model, folder = computed
    output = folder / "again.flax.safetensors"
    convert(folder / "model.pt", model=model, output=output, dtype=dtype)
    back = to_state_dict(output)
    assert back.keys() == model.state_dict().keys()
    for name, value in model.state_dict().items():
        if dtype is None or "parametrizations" in name:
            assert torch.equal(back[name], value), name


def test_a_computed_weight_that_was_changed_does_not_go_back(computed):
    _, folder = computed
    tree = load_pytree(folder / "model.flax.safetensors")
    tree["params"]["layers_1"]["kernel"] += 1
    with pytest.raises(MisfitError) as caught:
        to_state_dict(tree, kept=folder / "model.flax.torch.safetensors")
    assert "params/layers_1/kernel was changed" in " ".join(caught.value.misfits)

"""Every key has exactly one outcome, and everything that stands in the way is named at once."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.ao.nn import qat, quantizable

from converters import Outcome, convert_to_pytree, plan
from converters.errors import RefusedKeysError
from tests.frameworks import in_own_process


def row_of(model, key, state=None):
    return rows_of(model, state)[key]


def rows_of(model, state=None):
    state = model.state_dict() if state is None else state
    rows = plan(state, model=model).rows
    assert len({row.key for row in rows}) == len(rows)
    assert set(state) <= {row.key for row in rows}
    return {row.key: row for row in rows}


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 2, 3))
        self.register_buffer("table", torch.randn(4))
        self.register_buffer("ids", torch.arange(4), persistent=False)
        self.norm = nn.BatchNorm2d(5)


def test_plain_parameters_and_buffers():
    model = Plain()
    rows = rows_of(model, model.state_dict() | {"ids": torch.arange(4)})
    assert {key: (row.outcome, row.path, row.kind) for key, row in rows.items()} == {
        "token": (Outcome.MAPPED, "params/token", "Parameter"),
        "table": (Outcome.MAPPED, "buffers/table", "buffer"),
        "ids": (Outcome.DROPPED, "", "buffer"),
        "norm.weight": (Outcome.MAPPED, "params/norm/scale", "BatchNorm2d"),
        "norm.bias": (Outcome.MAPPED, "params/norm/bias", "BatchNorm2d"),
        "norm.running_mean": (Outcome.MAPPED, "batch_stats/norm/mean", "BatchNorm2d"),
        "norm.running_var": (Outcome.MAPPED, "batch_stats/norm/var", "BatchNorm2d"),
        "norm.num_batches_tracked": (Outcome.DROPPED, "", "BatchNorm2d"),
    }
    assert "a parameter of Plain itself: unchanged" in rows["token"].note
    assert "non-persistent buffer" in rows["ids"].note
    assert rows["norm.num_batches_tracked"].note
    tree = convert_to_pytree(model.state_dict(), model=model)
    assert set(tree) == {"params", "batch_stats", "buffers"}
    np.testing.assert_array_equal(tree["params"]["token"], model.token.detach().numpy())


def test_all_refusals_at_once():
    model = nn.Sequential(nn.Linear(2, 3), quantizable.LSTM(3, 4), nn.Linear(4, 5))
    state = model.state_dict()
    unknown = [name for name in state if name.startswith("1.")]
    assert unknown
    del state["0.bias"]
    state["2.weight"] = torch.zeros(4, 5)
    state["extra"] = torch.zeros(1)
    with pytest.raises(RefusedKeysError) as caught:
        convert_to_pytree(state, model=model)
    refused = {row.key: row.note for row in caught.value.refused}
    assert refused == {
        "0.bias": "the model needs it, the checkpoint lacks it",
        **dict.fromkeys(unknown, f"the layer kind {QUANTIZABLE}.rnn.LSTM is not known"),
        "2.weight": "shape (4, 5), the model has (5, 4)",
        "extra": "the model has no such tensor",
    }
    message = str(caught.value)
    assert "7 of 9 keys refused" in message
    assert "and 2 more" not in message
    assert message.count("is not known") == 1  # the reason of all four, said once
    assert len(message.splitlines()) == 1


QUANTIZABLE = "torch.ao.nn.quantizable.modules"


@pytest.mark.parametrize(
    "layer",
    [
        quantizable.MultiheadAttention(4, 2),
        qat.Linear(2, 3, qconfig=torch.ao.quantization.get_default_qat_qconfig()),
        quantizable.LSTM(2, 3),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_unknown_layers_are_refused_by_name(layer):
    model = nn.ModuleDict({"layer": layer})
    rows = rows_of(model).values()
    assert rows
    for row in rows:
        assert row.outcome is Outcome.REFUSED
        assert "is not known" in row.note
        # The whole layer is refused, its parts with it (out_proj of attention is a Linear).
        assert type(layer).__name__ in row.note


def test_layers_without_tensors_are_no_matter():
    model = nn.Sequential(
        nn.LocalResponseNorm(2), nn.CosineSimilarity(), nn.MaxPool2d(2), nn.GELU()
    )
    assert rows_of(model) == {}


def test_the_class_weights_of_a_loss_are_buffers():
    model = nn.ModuleDict({"loss": nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0]))})
    row = row_of(model, "loss.weight")
    assert (row.outcome, row.path, row.kind) == (Outcome.MAPPED, "buffers/loss/weight", "buffer")


class Scaled(nn.Linear):
    def __init__(self):
        super().__init__(2, 3)
        self.gain = nn.Parameter(torch.ones(3))


def test_what_a_subclass_has_beside_its_kinds_is_kept():
    rows = rows_of(nn.Sequential(Scaled()))
    assert rows["0.weight"].kind == "Linear"
    assert (rows["0.gain"].kind, rows["0.gain"].path) == ("Parameter", "params/layers_0/gain")
    assert "a parameter of Scaled itself" in rows["0.gain"].note


def test_a_layer_with_more_than_its_kind_has_is_refused():
    extended = nn.Linear(2, 3)
    extended.gain = nn.Parameter(torch.ones(3))
    row = row_of(nn.Sequential(extended), "0.gain")
    assert row.outcome is Outcome.REFUSED
    assert "Linear has no gain" in row.note


def test_what_may_stand_for_a_weight_is_refused():
    model = nn.Sequential(Scaled())
    model[0].register_buffer("weight_scale", torch.ones(3))
    assert row_of(model, "0.weight_scale").outcome is Outcome.REFUSED


def test_a_subclass_is_its_kind_and_says_so():
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    row = row_of(nn.Sequential(Doubled(2, 3)), "0.weight")
    assert (row.outcome, row.kind, row.target_shape) == (Outcome.MAPPED, "Linear", (2, 3))
    assert "Doubled" in row.note


def test_a_users_class_of_a_torch_name_is_not_that_layer():
    class Linear(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2, 3))

    row = row_of(nn.Sequential(Linear()), "0.weight")
    assert (row.kind, row.path, row.target_shape) == ("Parameter", "params/layers_0/weight", (2, 3))


@pytest.mark.parametrize(
    "lazy",
    [nn.LazyLinear(3), nn.LazyConv2d(3, 2), nn.LazyBatchNorm1d(), nn.LazyConvTranspose1d(2, 3)],
)
def test_a_lazy_layer_is_refused(lazy):
    row = row_of(nn.Sequential(lazy), "0.weight", {"0.weight": torch.ones(3, 2)})
    assert (row.outcome, row.note) == (Outcome.REFUSED, "a lazy layer that was never run")


def test_a_lazy_layer_that_was_run_is_its_kind():
    model = nn.Sequential(nn.LazyLinear(3))
    model(torch.ones(1, 2))
    assert row_of(model, "0.weight").target_shape == (2, 3)


def test_two_keys_for_one_path_are_refused():
    model = nn.Module()
    model.layer = nn.ModuleList([nn.Linear(2, 3, bias=False)])
    model.layer_0 = nn.Linear(2, 3, bias=False)
    rows = rows_of(model)
    assert {row.outcome for row in rows.values()} == {Outcome.REFUSED}
    assert "collides with that of layer_0.weight" in rows["layer.0.weight"].note
    assert "collides with that of layer.0.weight" in rows["layer_0.weight"].note


def test_a_path_through_another_array_is_refused():
    model = nn.Module()
    model.layer = nn.ModuleList([nn.Linear(2, 3, bias=False)])
    model.layer_0 = nn.Parameter(torch.ones(2))
    rows = rows_of(model)
    assert rows["layer.0.weight"].outcome is Outcome.REFUSED
    assert "layer_0" in rows["layer.0.weight"].note


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 3)
        self.head = nn.Linear(3, 7, bias=False)
        self.head.weight = self.embed.weight


def test_tied_weights_are_stored_once():
    model = Tied()
    rows = rows_of(model)
    assert rows["embed.weight"].path == "params/embed/embedding"
    assert rows["head.weight"].outcome is Outcome.TIED
    assert rows["head.weight"].note == "tied to embed.weight"
    tree = convert_to_pytree(model.state_dict(), model=model)
    assert set(tree["params"]) == {"embed"}


@pytest.mark.parametrize("stored", ["embed.weight", "head.weight"])
def test_tied_weights_stored_under_either_name(stored):
    model = Tied()
    state = {stored: model.embed.weight.detach()}
    row = row_of(model, stored, state)
    assert (row.outcome, row.path) == (Outcome.MAPPED, "params/embed/embedding")
    tree = convert_to_pytree(state, model=model)
    np.testing.assert_array_equal(
        tree["params"]["embed"]["embedding"], model.embed.weight.detach().numpy()
    )


def test_tied_weights_that_differ_are_refused():
    model = Tied()
    state = model.state_dict() | {"head.weight": torch.zeros(7, 3)}
    with pytest.raises(RefusedKeysError, match=r"tied to .*, but its values differ"):
        convert_to_pytree(state, model=model)


def test_one_module_under_two_names_is_tied():
    model = nn.Module()
    model.one = nn.Linear(2, 3)
    model.two = model.one
    rows = rows_of(model)
    assert rows["two.weight"].note == "tied to one.weight"
    assert rows["two.bias"].outcome is Outcome.TIED


def test_missing_tied_weights_are_refused_once():
    rows = plan({"other": torch.ones(1)}, model=Tied()).rows
    assert [row.key for row in rows] == ["other", "embed.weight"]


def test_notes_tell_what_the_flax_layer_needs():
    model = nn.Sequential(nn.LayerNorm((2, 3), eps=1e-12), nn.Embedding(3, 2, padding_idx=0))
    rows = rows_of(model)
    assert rows["0.weight"].note == (
        "epsilon=1e-12, use_fast_variance=False, reduction_axes=(-2, -1), feature_axes=(-2, -1)"
    )
    assert "padding_idx=0" in rows["1.weight"].note


def test_a_single_layer_is_a_model():
    tree = convert_to_pytree(nn.Linear(2, 3).state_dict(), model=nn.Linear(2, 3))
    assert {name: array.shape for name, array in tree["params"].items()} == {
        "kernel": (2, 3),
        "bias": (3,),
    }


@pytest.mark.xla
@pytest.mark.parametrize("bidirectional", [pytest.param(False, marks=pytest.mark.long), True])
@pytest.mark.long_cases("True")
def test_a_gru_is_a_gru_after_torch_xla_was_imported(bidirectional):
    """That import puts a class of its own in its place, which makes torch's for two directions."""
    own_rows = rows_of(nn.GRU(5, 3, bidirectional=bidirectional))
    rows = in_own_process(rows_with_torch_xla, bidirectional)
    assert {key: row.path for key, row in rows.items()} == {
        key: row.path for key, row in own_rows.items()
    }
    assert all(row.outcome is Outcome.MAPPED for row in rows.values())


def rows_with_torch_xla(bidirectional):
    own = nn.GRU
    import torch_xla  # noqa: F401

    assert nn.GRU is not own
    return rows_of(nn.GRU(5, 3, bidirectional=bidirectional))

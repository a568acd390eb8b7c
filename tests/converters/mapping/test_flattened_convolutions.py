"""Linear layers behind a flattened convolution: rows permuted, or the row says why they are not."""

import jax
import numpy as np
import pytest
import torch
from flax import linen
from torch import nn
from torch.nn import functional

from converters import Outcome, convert_to_pytree, plan
from converters.mapping.flattened_convolutions import flattened_inputs
from converters.mapping.module_tree import read_slots
from converters.modules.linen import LSTM, SpectralNorm, WeightNorm


class LeNet(nn.Module):
    """Flattens with a size written down, so that only one input fits."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 3, 5, padding=2)
        self.conv2 = nn.Conv2d(3, 4, 5)
        self.fc1 = nn.Linear(4 * 5 * 5, 6)
        self.fc2 = nn.Linear(6, 7)

    def forward(self, x):
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        return self.fc2(functional.relu(self.fc1(x.view(-1, 4 * 5 * 5))))


class FlaxLeNet(linen.Module):
    def setup(self):
        self.conv1 = linen.Conv(3, (5, 5), padding=2)
        self.conv2 = linen.Conv(4, (5, 5), padding="VALID")
        self.fc1, self.fc2 = linen.Dense(6), linen.Dense(7)

    def __call__(self, x):
        x = linen.max_pool(linen.relu(self.conv1(x)), (2, 2), (2, 2))
        x = linen.max_pool(linen.relu(self.conv2(x)), (2, 2), (2, 2))
        return self.fc2(linen.relu(self.fc1(x.reshape(len(x), -1))))


class VGG(nn.Module):
    """A pool of fixed size before the classifier: any input fits, all give the same sides."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2)
        )
        self.avgpool = nn.AdaptiveAvgPool2d((2, 3))
        self.classifier = nn.Sequential(
            nn.Linear(4 * 2 * 3, 6), nn.ReLU(), nn.Dropout(), nn.Linear(6, 5)
        )

    def forward(self, x):
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


class FlaxVGG(linen.Module):
    def setup(self):
        norm = linen.BatchNorm(use_running_average=True)
        self.features = linen.Sequential([linen.Conv(4, (3, 3), padding=1), norm, linen.relu])
        self.classifier = linen.Sequential(
            [linen.Dense(6), linen.relu, lambda x: x, linen.Dense(5)]
        )

    def __call__(self, x):
        x = linen.max_pool(self.features(x), (2, 2), (2, 2))
        # The input's 8 x 12 are 4 x 6 here: pooled to 2 x 3.
        x = linen.avg_pool(x, (2, 2), (2, 2))
        return self.classifier(x.reshape(len(x), -1))


class FlaxSequence(linen.Module):
    """Conv1d, Flatten, BatchNorm1d, Linear under the names of a Sequential."""

    def setup(self):
        self.layers_0 = linen.Conv(4, (3,), padding="VALID")
        self.layers_2 = linen.BatchNorm(use_running_average=True)
        self.layers_3 = linen.Dense(6)

    def __call__(self, x):
        x = self.layers_0(x)
        return self.layers_3(self.layers_2(x.reshape(len(x), -1)))


def discriminator(norm):
    """Of its last weight's tensors some have the axis that is reordered, others not."""
    last = getattr(nn.utils.parametrizations, norm)(nn.Linear(64, 5))
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.LeakyReLU(0.2), nn.Flatten(), last)


class FlaxDiscriminator(linen.Module):
    around: type

    def setup(self):
        self.layers_0 = linen.Conv(4, (3, 3), padding="VALID")
        self.layers_3 = self.around(linen.Dense(5))

    def __call__(self, x):
        x = linen.leaky_relu(self.layers_0(x), 0.2)
        return self.layers_3(x.reshape(len(x), -1))


class Text(nn.Module):
    """Reads an image column by column: channels and height of each are the features of a step."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.lstm = nn.LSTM(4 * 32, 3, bidirectional=True)

    def forward(self, x):
        x = self.conv(x).permute(3, 0, 1, 2)
        return self.lstm(x.reshape(x.size(0), x.size(1), -1))[0]


class FlaxText(linen.Module):
    def setup(self):
        self.conv = linen.Conv(4, (3, 3), padding=1)
        self.lstm = LSTM(3, bidirectional=True)

    def __call__(self, x):
        x = self.conv(x).transpose(2, 0, 1, 3)
        return self.lstm(x.reshape(*x.shape[:2], -1))[0]


def sequence():
    layers = (nn.Conv1d(3, 4, 3), nn.Flatten(), nn.BatchNorm1d(4 * 7), nn.Linear(4 * 7, 6))
    return nn.Sequential(*layers)


@pytest.mark.parametrize(
    ("torch_model", "flax_model", "shape"),
    [
        (LeNet(), FlaxLeNet(), (2, 1, 28, 28)),
        (VGG(), FlaxVGG(), (2, 3, 8, 12)),
        (sequence(), FlaxSequence(), (2, 3, 9)),
        (Text(), FlaxText(), (2, 1, 32, 5)),
        (discriminator("weight_norm"), FlaxDiscriminator(WeightNorm), (2, 3, 6, 6)),
        (discriminator("spectral_norm"), FlaxDiscriminator(SpectralNorm), (2, 3, 6, 6)),
    ],
    ids=["LeNet", "VGG", "Conv1d and BatchNorm1d", "LSTM", "weight_norm", "spectral_norm"],
)
def test_a_channels_last_model_gives_the_same(torch_model, flax_model, shape, monkeypatch):
    torch.manual_seed(0)
    model = torch_model.eval()
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point():
            tensor.uniform_(*((0.5, 1.5) if "running_var" in name else (-0.3, 0.3)))
    x = torch.randn(*shape)
    expected = model(x).detach().numpy()

    def converted():
        tree = convert_to_pytree(model.state_dict(), model=model)
        with jax.default_matmul_precision("highest"):
            return flax_model.apply(tree, np.moveaxis(x.numpy(), 1, -1))

    np.testing.assert_allclose(converted(), expected, rtol=1e-5, atol=1e-6)
    assert any("rows permuted" in row.note for row in rows_of(model).values())
    assert not any(
        "computed" in str(target.join)
        for slot in read_slots(model).values()
        for target in slot.targets
    )
    monkeypatch.setattr("converters.mapping.module_tree.flattened_inputs", lambda *_: {})
    assert np.abs(converted() - expected).max() > 1e-2  # it does matter


AFTER, STAY = "a flattened convolution", "rows are not permuted"


def permuted(order, moved):
    """Note of a layer whose rows are permuted."""
    return f"rows permuted: torch flattens {order}, Flax {moved}"


def rows_of(model, **options):
    return {row.key: row for row in plan(model.state_dict(), model=model, **options).rows}


def test_the_row_says_what_it_rests_on():
    row = rows_of(LeNet())["fc1.weight"]
    assert row.target_shape == (100, 6)
    assert row.note == f"{permuted((4, 5, 5), (5, 5, 4))} (assumed: inputs of 28 x 28)"
    rows = rows_of(VGG())
    assert rows["classifier.0.weight"].note == permuted((4, 2, 3), (2, 3, 4))
    assert rows["classifier.0.bias"].note == rows["classifier.3.weight"].note == ""


def test_a_model_without_values_is_not_touched():
    model = VGG().to("meta")
    before = {name: id(tensor) for name, tensor in model.named_parameters()}
    assert model.training
    assert list(flattened_inputs(model)) == ["classifier.0"]
    assert model.training
    assert {name: id(tensor) for name, tensor in model.named_parameters()} == before
    assert not any(module._forward_pre_hooks for module in model.modules())


class Free(nn.Module):
    """conv, then what is done to its output, then a Linear that fits an input of 6 x 6."""

    def __init__(self, between, features):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.between = between
        self.fc = nn.Linear(features, 2)

    def forward(self, x):
        return self.fc(self.between(self.conv(x)))


@pytest.mark.parametrize(
    ("between", "features", "sides"),
    [
        (lambda x: x.flatten(1), 64, (4, 4, 4)),
        (lambda x: x.reshape(x.shape[0], -1), 64, (4, 4, 4)),
        (lambda x: torch.cat([x, x], 1).flatten(1), 128, (8, 4, 4)),
        (lambda x: functional.relu(x).flatten(1).mul(2), 64, (4, 4, 4)),
        (lambda x: functional.hardswish(functional.leaky_relu(x)).flatten(1), 64, (4, 4, 4)),
        (lambda x: functional.pixel_unshuffle(x, 2).flatten(1), 64, (16, 2, 2)),
        (lambda x: functional.instance_norm(x).flatten(1), 64, (4, 4, 4)),
        (lambda x: functional.avg_pool2d(x, (4, 1)).squeeze(2).flatten(1), 16, (4, 4)),
        (lambda x: x.permute(0, 2, 3, 1).flatten(1), 64, None),
        (lambda x: x.mean((2, 3)), 4, None),
        (lambda x: functional.adaptive_avg_pool2d(x, 1).flatten(1), 4, None),
        (lambda x: x.flatten(2).transpose(1, 2), 4, None),
        (lambda x: x.transpose(1, 3), 4, None),
    ],
)
def test_what_is_done_between(between, features, sides):
    found = flattened_inputs(Free(between, features), [(2, 3, 6, 6)])
    assert {name: one.sides for name, one in found.items()} == ({"fc": sides} if sides else {})


def test_what_gets_lost_on_the_way_is_told():
    """A product with a matrix may have mixed the places: nobody knows their order then."""
    model = Free(lambda x: x.flatten(1) @ torch.eye(64), 64)
    (one,) = flattened_inputs(model, [(2, 3, 6, 6)]).values()
    assert one.order == ()
    assert f"may be {AFTER}" in one.note


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.fc = nn.Linear(4 * 4 * 7, 2)

    def forward(self, x, shift):
        return self.fc(self.conv(x).flatten(1)) + shift


def test_without_an_input_nothing_is_permuted_but_told():
    row = rows_of(TwoInputs())["fc.weight"]
    assert row.outcome is Outcome.MAPPED
    assert row.note == (
        "its input may be a flattened convolution: if so, rows are not permuted, "
        "transpose back to NCHW before flattening in Flax"
    )
    np.testing.assert_array_equal(
        convert_to_pytree(TwoInputs().state_dict(), model=TwoInputs())["params"]["fc"][
            "bias"
        ].shape,
        (2,),
    )


def test_what_the_model_prints_is_not_heard(capsys):
    def between(x):
        print("shape:", x.shape)  # noqa: T201
        return x.flatten(1)

    assert flattened_inputs(Free(between, 64))["fc"].sides == (4, 4, 4)
    assert capsys.readouterr().out == ""


def test_a_bare_tree_is_looked_at_without_being_run():
    tree = nn.Module()
    tree.conv, tree.fc = nn.Conv2d(3, 4, 3), nn.Linear(64, 2)
    (one,) = flattened_inputs(tree).values()
    assert (one.order, "may be" in one.note) == ((), True)


def test_a_given_input_decides():
    slots = read_slots(TwoInputs(), example=[(2, 3, 6, 9), (1, 2)])
    assert slots["fc.weight"].note == permuted((4, 4, 7), (4, 7, 4))


def test_a_sequential_that_fits_no_input_is_known_by_its_tree():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 4 * 7, 2))
    row = rows_of(model)["2.weight"]
    assert row.note.startswith(f"its input is {AFTER}: {STAY}")


def test_one_layer_of_two_inputs_is_not_permuted():
    class Shared(Free):
        def forward(self, x):
            y = self.conv(x)
            return self.fc(y.flatten(1)) + self.fc(y.permute(0, 2, 3, 1).flatten(1))

    (one,) = flattened_inputs(Shared(None, 64), [(2, 3, 6, 6)]).values()
    assert one.order == ()
    assert "flattened in different ways" in one.note


def test_models_without_a_flattened_convolution_are_left_alone():
    def forbidden(x):
        raise AssertionError("it must not be run")

    linear = nn.Sequential(nn.Linear(4, 2))
    linear.forward = forbidden
    assert flattened_inputs(linear) == {}

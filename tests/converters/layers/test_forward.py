"""Every layer entry, proven by running torch, linen and nnx on the same weights, and by the way back."""

import dataclasses
import itertools

import pytest

from converters.layers import Permute, entries
from converters.layers.layout import Chain
from tests.converters.layers.forward import compare_forward

TOLERANCE = 1e-6
CASES = [
    pytest.param(entry, case, id=f"{entry.kind}: {case.name}")
    for entry in entries().values()
    for case in entry.cases
]
# By default two cases of each layer, the others with the long tests.
COMPARED = [
    pytest.param(entry, case, id=f"{entry.kind}: {case.name}", marks=marks)
    for entry in entries().values()
    for case, marks in zip(
        entry.cases, itertools.chain(((), ()), itertools.repeat(pytest.mark.long)), strict=False
    )
]
# One kind of each layout; the others of its family share the layout's code and are held by CASES.
PERMUTED = ["Linear", "Bilinear", "Conv2d", "ConvTranspose2d", "MultiheadAttention", "RNNCell"]


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize(("entry", "case"), COMPARED)
def test_the_outputs_agree_and_the_weights_come_back(entry, case):
    comparison = compare_forward(entry, case)
    assert comparison.misfits == ()
    assert comparison.errors.keys() == {"linen", "nnx"}
    assert comparison.agrees(TOLERANCE), comparison
    assert comparison.lost == {"linen": (), "nnx": ()}


def planted(entry, wrong):
    """The entry with other layouts: (its weight, a part of its layout) → the part."""

    def weights(layer):
        return tuple(
            dataclasses.replace(weight, layout=replaced(weight, weight.layout, wrong))
            for weight in entry.weights_of(layer)
        )

    return dataclasses.replace(entry, weights=weights)


def replaced(weight, layout, wrong):
    if isinstance(layout, Chain):
        return Chain(tuple(replaced(weight, part, wrong) for part in layout.layouts))
    return wrong.get((weight.torch, str(layout)), layout)


def parts_of(weight):
    return weight.layout.layouts if isinstance(weight.layout, Chain) else (weight.layout,)


def permutations():
    """Every permutation that the kinds use, with the first case that uses it."""
    import torch

    found = {}
    for kind in PERMUTED:
        entry = entries()[kind]
        for case in entry.cases:
            for weight in entry.weights_of(case.torch(torch.nn)):
                for part in parts_of(weight):
                    if isinstance(part, Permute):
                        key = (kind, weight.torch, str(part))
                        found.setdefault(key, (entry, case, weight.torch, part))
    return [pytest.param(*value, id=" ".join(key)) for key, value in found.items()]


def others(axes):
    """All other orders; of many axes those that differ by the exchange of two."""
    if len(axes) < 5:
        return [other for other in itertools.permutations(range(len(axes))) if other != axes]
    swaps = itertools.combinations(range(len(axes)), 2)
    return [
        tuple(axes[{one: two, two: one}.get(at, at)] for at in range(len(axes)))
        for one, two in swaps
    ]


@pytest.mark.parametrize(("entry", "case", "name", "layout"), permutations())
def test_every_wrong_permutation_is_caught(entry, case, name, layout):
    for axes in others(layout.axes):
        wrong = planted(entry, {(name, str(layout)): Permute(axes)})
        # A kernel side of 1 could hide one: the kind is proven by its cases together.
        assert caught(wrong, case) or any(caught(wrong, other) for other in entry.cases), axes


def caught(entry, case):
    """A permutation that does not fit the next step, or the shapes, is caught before any run."""
    comparison = compare_forward(entry, case)
    return bool(comparison.misfits) or not comparison.agrees(TOLERANCE)


def test_a_missing_flip_is_caught():
    entry = entries()["ConvTranspose2d"]

    def weights(layer):
        kernel, bias = entry.weights_of(layer)
        return dataclasses.replace(kernel, layout=kernel.layout.layouts[0]), bias

    comparison = compare_forward(dataclasses.replace(entry, weights=weights), entry.cases[0])
    assert comparison.misfits == ()
    assert min(comparison.errors.values()) > 0.1


def test_the_biases_of_a_gru_are_told_apart():
    """Added up, they would do for an LSTM; torch's GRU has a gate between them."""
    import torch

    entry = entries()["GRU"]
    names = {"input_bias_l0": "hidden_bias_l0", "hidden_bias_l0": "input_bias_l0"}

    def weights(layer):
        return tuple(
            dataclasses.replace(
                weight,
                linen=names.get(weight.linen, weight.linen),
                nnx=names.get(weight.nnx, weight.nnx),
            )
            for weight in entry.weights_of(layer)
        )

    assert len(weights(torch.nn.GRU(5, 3))) == 5
    comparison = compare_forward(dataclasses.replace(entry, weights=weights), entry.cases[0])
    assert comparison.misfits == ()
    assert min(comparison.errors.values()) > 0.01


def test_swapped_weights_are_caught_where_shapes_are_equal():
    """Scale and bias have one shape: only the values can tell them apart."""
    entry = entries()["LayerNorm"]
    scale, bias = entry.weights
    swapped = (
        dataclasses.replace(scale, linen="bias", nnx="bias"),
        dataclasses.replace(bias, linen="scale", nnx="scale"),
    )
    comparison = compare_forward(dataclasses.replace(entry, weights=swapped), entry.cases[0])
    assert comparison.misfits == ()
    assert min(comparison.errors.values()) > 0.1


def test_a_wrong_epsilon_is_caught():
    entry = entries()["LayerNorm"]

    def default(layer, api):
        (call,) = entry.flax(layer, api)
        kept = {name: value for name, value in call.settings.items() if name != "epsilon"}
        return (dataclasses.replace(call, settings=kept),)

    wrong = dataclasses.replace(entry, flax=default)
    comparison = compare_forward(wrong, entry.cases[1])
    assert comparison.misfits == ()
    assert min(comparison.errors.values()) > TOLERANCE


def test_a_mask_of_the_other_polarity_is_caught():
    entry = entries()["MultiheadAttention"]
    case = next(case for case in entry.cases if case.name == "without weights")

    def inverted(layer, query, arguments):
        mask = {"key_padding_mask": ~arguments["key_padding_mask"], "need_weights": False}
        return layer(query, **{**arguments, **mask})

    comparison = compare_forward(entry, dataclasses.replace(case, flax_call=inverted))
    assert comparison.misfits == ()
    assert min(comparison.errors.values()) > 0.01


@pytest.mark.parametrize(("entry", "case"), CASES)
def test_the_sides_differ(entry, case):
    """With equal sides a wrong permutation would fit, and might even give the right output."""
    import torch

    sides = case.input_shape
    assert len(set(sides)) == len(sides)
    layer = case.torch(torch.nn)
    permuted = {
        weight.torch for weight in entry.weights_of(layer) if isinstance(weight.layout, Permute)
    }
    for name, tensor in layer.state_dict().items():
        # An RNN's hidden weights are square by nature: their transpose is caught by its values above.
        if name in permuted and not (entry.kind.startswith("RNN") and "_hh" in name):
            # A depthwise kernel has one input channel a group by definition.
            counted = [side for side in tensor.shape if side != 1]
            assert len(set(counted)) == len(counted)

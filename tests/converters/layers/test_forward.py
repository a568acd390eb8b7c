"""Every layer entry, proven by running torch, linen and nnx on the same weights."""

import dataclasses
import itertools

import pytest

from converters.layers import Permute, entries
from converters.layers.forward import compare_forward

TOLERANCE = 1e-6
CASES = [
    pytest.param(entry, case, id=f"{entry.kind}: {case.name}")
    for entry in entries().values()
    for case in entry.cases
]
PERMUTED = [
    pytest.param(entry, weight, id=f"{entry.kind}.{weight.torch}")
    for entry in entries().values()
    for weight in entry.weights
    if isinstance(weight.layout, Permute)
]


def with_layout(entry, weight, layout):
    """The entry with another layout for one of its weights."""
    planted = dataclasses.replace(weight, layout=layout)
    weights = tuple(planted if other == weight else other for other in entry.weights)
    return dataclasses.replace(entry, weights=weights)


@pytest.mark.parametrize(("entry", "case"), CASES)
def test_the_outputs_agree(entry, case):
    comparison = compare_forward(entry, case)
    assert comparison.misfits == ()
    assert comparison.errors.keys() == ({"linen", "nnx"} if case.nnx else {"linen"})
    assert comparison.agrees(TOLERANCE), comparison


@pytest.mark.parametrize(("entry", "weight"), PERMUTED)
def test_every_wrong_permutation_is_caught(entry, weight):
    for axes in itertools.permutations(range(len(weight.layout.axes))):
        if axes != weight.layout.axes:
            wrong = with_layout(entry, weight, Permute(axes))
            # The kind is proven by its cases together: one that misses this is a hole.
            assert not all(compare_forward(wrong, case).agrees(TOLERANCE) for case in entry.cases)


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
    case = dataclasses.replace(
        entry.cases[1], linen=lambda nn: nn.LayerNorm(use_bias=False), nnx=None
    )
    assert not compare_forward(entry, case).agrees(TOLERANCE)


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
        if name in permuted:
            # A depthwise kernel has one input channel a group by definition.
            counted = [side for side in tensor.shape if side != 1]
            assert len(set(counted)) == len(counted)

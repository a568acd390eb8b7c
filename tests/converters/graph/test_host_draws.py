"""Ports of models that draw by Python or numpy in training: what they draw is an input of the port."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from converters.graph import port
from converters.host_draws import replayed
from converters.single_draws import draws_compared
from tests.converters.graph import host_drawn
from tests.converters.graph.flax_side import Inputs, variables
from tests.converters.graph.test_training import arrays, close, kept, real, scalar

PADDING = torch.tensor([[0.0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 0]])
CASES: dict[str, tuple[Callable[[], torch.nn.Module], Inputs, list[str]]] = {
    "masks": (host_drawn.Speech, {"x": real(2, 7, 5)}, ["places", "features"]),
    "masks and padding": (
        host_drawn.Masked,
        {"x": real(2, 7, 5), "padding": PADDING},
        ["places", "features"],
    ),
    "inline": (host_drawn.Inline, {"x": real(2, 4)}, ["gain"]),
    "a list": (host_drawn.Chosen, {"x": real(2, 4)}, ["order"]),
    "one line twice": (host_drawn.Twice, {"x": real(2, 4)}, ["shift", "shift_2"]),
}


def without_dropouts(model: torch.nn.Module) -> torch.nn.Module:
    for one in model.modules():
        if isinstance(one, torch.nn.Dropout):
            one.p = 0.0
    return model


@pytest.mark.parametrize("name", CASES)
@pytest.mark.long_cases("masks and padding")
def test_what_the_host_draws_is_an_input(name: str, load: Callable[..., Any]) -> None:
    make, inputs, names = CASES[name]
    torch.manual_seed(0)
    model = make().eval()
    written = port(model, inputs)
    assert written.refused == ""
    assert written.trains
    assert [one.name for one in written.drawn] == names
    assert {one.name for one in written.inputs if one.optional} >= set(names)
    flax, weights = load(written), variables(model, written, inputs)
    with torch.no_grad():
        close(flax.apply(weights, **arrays(inputs)), model(**inputs))
    seen = []
    for seed in (1, 2):
        generator = torch.Generator().manual_seed(seed)
        values = {}
        for one in written.drawn:
            order = torch.randperm(one.value.numel(), generator=generator)
            values[one.name] = one.value.flatten()[order].view(one.value.shape)
        seen.append(compared(flax, weights, model, written, inputs, values))
    assert seen[0] != seen[1]


def compared(
    flax: Any, weights: Any, model: Any, written: Any, inputs: Inputs, values: Inputs
) -> float:
    """Compare outputs and gradients in training for these draws; the value that both have."""

    def loss(params: Any) -> Any:
        with kept():
            given = arrays(inputs | values)
            return scalar(flax.apply({**weights, "params": params}, **given, deterministic=False))

    value, gradients = jax.value_and_grad(loss)(weights["params"])
    twin = without_dropouts(type(model)())
    twin.load_state_dict(model.state_dict())
    twin.train()
    places = {one.place: values[one.name] for one in written.drawn}
    with replayed(twin, places), draws_compared():
        result = scalar(twin(**inputs))
    result.backward()
    close(value, float(result.detach()), scale=1.0)
    found = {key: one.grad for key, one in twin.named_parameters()}
    with torch.no_grad():
        for key, one in twin.named_parameters():
            one.copy_(found[key])
    jax.tree.map(
        lambda a, b: close(a, b, scale=1e-2), gradients, variables(twin, written, inputs)["params"]
    )
    return float(value)


def test_training_needs_it_and_evaluation_does_not(load: Callable[..., Any]) -> None:
    model, inputs = host_drawn.Inline().eval(), {"x": real(2, 4)}
    written = port(model, inputs)
    flax, weights = load(written), variables(model, written, inputs)
    with pytest.raises(ValueError, match="training needs gain"):
        flax.apply(weights, **arrays(inputs), deterministic=False)
    assert flax.init(jax.random.key(0), **arrays(inputs))


@pytest.mark.long
def test_sizes_that_the_host_is_given_stay_free(load: Callable[..., Any]) -> None:
    model, inputs = host_drawn.Speech().eval(), {"x": real(2, 7, 5)}
    written = port(model, inputs)
    assert written.free[0] == "x: batch (axis 0), length (axis 1)"
    flax, weights = load(written), variables(model, written, inputs)
    longer = real(3, 11, 5)
    masks = {"places": np.zeros((3, 11), bool), "features": np.zeros((3, 8), bool)}
    with kept():
        found = flax.apply(weights, x=jnp.asarray(longer.numpy()), **masks, deterministic=False)
    with torch.no_grad():
        close(found, model(longer))


@pytest.mark.parametrize("make", [host_drawn.Number, host_drawn.AsMany, host_drawn.Always])
def test_what_is_no_tensor_of_one_shape_is_refused(make: Callable[[], torch.nn.Module]) -> None:
    written = port(make().eval(), {"x": real(2, 4)})
    assert "by Python or numpy" in written.refused
    assert not written.drawn


def test_a_layer_that_evaluation_does_not_call_is_refused() -> None:
    written = port(host_drawn.Projected().eval(), {"x": real(2, 4)})
    assert "then alone calls more, which has weights" in written.refused


@pytest.mark.long
def test_the_generators_are_as_they_were() -> None:
    before = random.getstate(), str(np.random.get_state())
    functions = np.random.choice, random.random, torch.from_numpy
    port(host_drawn.Speech().eval(), {"x": real(2, 7, 5)})
    assert (random.getstate(), str(np.random.get_state())) == before
    assert (np.random.choice, random.random, torch.from_numpy) == functions

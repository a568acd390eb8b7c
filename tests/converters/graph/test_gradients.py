"""Gradients are stopped where the original stops them, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from converters.graph import Port, port
from tests.converters.graph import stopped
from tests.converters.graph.flax_side import Inputs, variables

STOP = "jax.lax.stop_gradient("
WAYS = (
    *("no_grad", "decorated", "inference_mode", "set_grad_enabled", "detach", "detach_", "data"),
    *("module", "parameter", "average", "requires_grad_", "enabled within"),
)


def real(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


CASES: dict[str, tuple[Callable[[], torch.nn.Module], Inputs]] = {
    "quantizer": (lambda: stopped.Quantizer(7, 5), {"z": real(3, 4, 5)}),
    "residual": (stopped.Residual, {"x": real(3, 4, 6)}),
    "images": (stopped.Images, {"x": real(2, 3, 6, 8)}),
    "filled": (stopped.Filled, {"x": real(3, 6)}),
    "silent": (stopped.Silent, {"x": real(3, 6)}),
    "gradless": (stopped.Gradless, {"x": real(3, 6)}),
    "padded": (stopped.Padded, {"x": real(3, 6)}),
    "turns": (stopped.Turns, {"x": real(3, 6)}),
    **{way: (partial(stopped.Teacher, way), {"x": real(3, 6)}) for way in WAYS},
}


def made(name: str) -> tuple[torch.nn.Module, Inputs, Port]:
    torch.manual_seed(0)
    factory, inputs = CASES[name]
    model = factory().eval()
    return model, inputs, port(model, inputs)


def of_torch(model: torch.nn.Module, inputs: Inputs) -> tuple[dict[str, Any], dict[str, Any]]:
    """Gradients by parameter and by input, of the sum of all outputs times numbers that count up."""
    model = model.double()
    given = {name: one.double().requires_grad_() for name, one in inputs.items()}
    with torch.enable_grad():
        outputs = model(**given)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    parts = [
        (one * torch.arange(1, 1 + one.numel()).reshape(one.shape)).sum()
        for one in outputs
        if one.requires_grad
    ]
    if parts:
        sum(parts).backward()
    state = {
        name: torch.zeros_like(one) if one.grad is None else one.grad
        for name, one in model.named_parameters()
    }
    return state, {name: one.grad for name, one in given.items()}


def of_flax(flax: Any, weights: Any, inputs: Inputs) -> tuple[Any, Any]:
    def total(params: Any, given: Any) -> Any:
        outputs = jax.tree.leaves(flax.apply({**weights, "params": params}, **given))
        return sum(
            (one * jnp.arange(1, 1 + one.size).reshape(one.shape)).sum()
            for one in outputs
            if jnp.issubdtype(one.dtype, jnp.floating)
        )

    given = {name: jnp.asarray(one.numpy()) for name, one in inputs.items()}
    with jax.default_matmul_precision("highest"):
        return jax.jit(jax.grad(total, (0, 1)))(weights["params"], given)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.long_cases("detach_", "set_grad_enabled", "inference_mode", "decorated")
def test_its_gradients_are_those_of_torch(name: str, load: Callable[[Port], Any]) -> None:
    model, inputs, written = made(name)
    flax, weights = load(written), variables(model, written, inputs)
    params, given = of_flax(flax, weights, inputs)
    expected, expected_given = of_torch(model, inputs)
    for parameter, tensor in model.named_parameters():
        tensor.data = expected[parameter]
    wanted = variables(model, written, inputs)["params"]
    jax.tree.map(
        lambda found, right: np.testing.assert_allclose(found, right, rtol=2e-5, atol=2e-5),
        params,
        wanted,
    )
    for key, array in given.items():
        right = expected_given[key]
        right = np.zeros(array.shape) if right is None else right.numpy()
        np.testing.assert_allclose(array, right, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", sorted(set(CASES) - {"silent"}))
def test_the_source_says_where_a_gradient_stops(name: str) -> None:
    assert STOP in made(name)[2].modeling


def test_what_has_no_gradient_anyway_is_written_as_before() -> None:
    assert "stop_gradient" not in made("silent")[2].modeling


def test_a_straight_through_estimator_looks_as_the_original() -> None:
    source = made("quantizer")[2].modeling
    assert "q = z + jax.lax.stop_gradient(q - z)" in source
    assert made("images")[2].modeling.count("stop_gradient") == 1


def test_layers_in_a_loop_stay_one() -> None:
    source = made("turns")[2].modeling
    assert (
        "for layer in self.layers:\n            h = h + layer(jax.lax.stop_gradient(h))" in source
    )


def test_recording_leaves_parameters_and_torch_as_they_were() -> None:
    model = stopped.Residual()
    model.dec.weight.requires_grad_(False)
    before = [one.requires_grad for one in model.parameters()]
    with torch.no_grad():
        port(model, {"x": real(3, 4, 6)})
        assert not torch.is_grad_enabled()
    assert [one.requires_grad for one in model.parameters()] == before
    with torch.inference_mode():
        assert torch.is_inference_mode_enabled()

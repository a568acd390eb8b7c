"""Sources that round once in bfloat16, as torch's kernels do: products with their bias, activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from torch import nn
from torch.nn import functional

from converters.graph import Port, port
from converters.graph.writing.precision.rounding import rounding_once
from tests.converters.graph.flax_side import variables
from tests.converters.graph.test_dtypes import apart, arrays, halved, real, rounded


class Decoder(nn.Module):
    """Biases of the size of what they are added to, and activations that JAX rounds several times."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(3, 8, 3, padding=1)
        self.mix = nn.Linear(8, 8, bias=False)
        self.out = nn.Linear(8, 32)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = torch.relu(self.conv(x)).transpose(1, 2)
        logits = self.out(self.mix(h))
        return torch.sigmoid(logits), torch.softmax(logits, -1)


INPUTS = {"x": real(4, 3, 64)}


def once_rounded(model: Decoder) -> list[Any]:
    """What it gives where each layer computes exactly and rounds once, whatever kernels torch has here."""

    def short(x: torch.Tensor) -> torch.Tensor:
        return x.bfloat16().double()

    weights = {name: short(one) for name, one in model.state_dict().items()}
    x = functional.conv1d(
        short(INPUTS["x"]), weights["conv.weight"], weights["conv.bias"], padding=1
    )
    h = short(functional.linear(torch.relu(short(x)).transpose(1, 2), weights["mix.weight"]))
    logits = short(functional.linear(h, weights["out.weight"], weights["out.bias"]))
    return [short(one).float().numpy() for one in (logits.sigmoid(), logits.softmax(-1))]


@pytest.fixture(scope="module")
def written() -> tuple[nn.Module, Port]:
    torch.manual_seed(0)
    model = Decoder().eval()
    return model, port(model, INPUTS)


@pytest.mark.parametrize("mixed", [False, True], ids=["bfloat16", "float32 weights"])
@pytest.mark.parametrize("once", [False, True], ids=["plain", "rounded once"])
def test_rounding_once_it_is_as_exact_as_one_rounding_is(
    once: bool, mixed: bool, written: tuple[nn.Module, Port], load: Callable[[Port], Any]
) -> None:
    model, plain = written
    assert isinstance(model, Decoder)
    made = plain.rounding_once() if once else plain
    assert made is not None
    weights = variables(model, plain, INPUTS)["params"]
    weights = jax.tree.map(lambda x: halved(x).astype(x.dtype) if mixed else halved(x), weights)
    more: dict[str, Any] = {"dtype": jnp.bfloat16} if mixed else {}  # param_dtype is not needed
    flax = load(made).clone(**more)
    outputs = jax.jit(flax.apply)({"params": weights}, **arrays(INPUTS))
    ideal, truth = once_rounded(model), rounded(model, INPUTS)
    for mine, other, exact in zip(outputs, ideal, truth, strict=True):
        assert mine.dtype == jnp.bfloat16
        times = apart(mine, exact) / apart(other, exact)
        assert times < 1.05 if once else times > 1.3


@pytest.mark.parametrize("once", [False, True], ids=["plain", "rounded once"])
@pytest.mark.long_cases("plain")
def test_its_gradients_have_the_dtypes_of_its_weights(
    once: bool, written: tuple[nn.Module, Port], load: Callable[[Port], Any]
) -> None:
    model, plain = written
    made = plain.rounding_once() if once else plain
    assert made is not None
    weights = variables(model, plain, INPUTS)
    flax = load(made).clone(dtype=jnp.bfloat16)

    def loss(variables: Any, dtype: Any) -> Any:
        given = {name: one.astype(dtype) for name, one in arrays(INPUTS).items()}
        return (flax.clone(dtype=dtype).apply(variables, **given)[0].astype(jnp.float32) ** 2).sum()

    narrow, wide = (jax.grad(loss)(weights, one) for one in (jnp.bfloat16, jnp.float32))
    with torch.enable_grad():
        given = {name: one.bfloat16().float() for name, one in INPUTS.items()}
        (model(**given)[0] ** 2).sum().backward()
    for found, limit in ((wide, 1e-5), (narrow, 3e-2)):
        gradient = found["params"]["out"]["kernel"]
        assert gradient.dtype == jnp.float32
        assert apart(gradient, model.out.weight.grad.T.numpy()) < limit
    model.zero_grad()


def test_what_has_no_bias_stays_a_layer_of_flax(written: tuple[nn.Module, Port]) -> None:
    exact = written[1].rounding_once()
    assert exact is not None
    assert "self.mix = nn.Dense(8, use_bias=False" in exact.modeling
    assert "self.out = DenseRoundedOnce(32" in exact.modeling
    assert "self.conv = ConvRoundedOnce(8" in exact.modeling
    assert "rounded_once(jax.nn.softmax)" in exact.modeling


def test_a_model_without_such_has_no_other_source() -> None:
    assert port(nn.Linear(3, 4, bias=False).eval(), {"input": real(2, 3)}).rounding_once() is None


def test_comments_and_the_lines_around_stay() -> None:
    text = (
        "x = nn.Dense(4)(jax.nn.silu(y))  # µ: nn.Dense(4)\nz = nn.Conv(3, use_bias=False)(x)\n"
        "w = f(jax.nn.relu, partial(jax.nn.gelu, approximate=False), x.silu)\n"
    )
    assert rounding_once(text) == (
        "x = DenseRoundedOnce(4)(rounded_once(jax.nn.silu)(y))  # µ: nn.Dense(4)\n"
        "z = nn.Conv(3, use_bias=False)(x)\n"
        "w = f(jax.nn.relu, partial(rounded_once(jax.nn.gelu), approximate=False), x.silu)\n"
    )


def test_layers_that_are_made_by_a_partial_call_round_once_too() -> None:
    text = (
        "dense = partial(nn.Dense, dtype=d)\nbare = partial(nn.Dense, use_bias=False)\n"
        "conv = partial(nn.Conv, padding=1)\nx = partial(f, nn.Dense)\ny = partial(nn.LayerNorm)\n"
    )
    assert rounding_once(text) == (
        "dense = partial(DenseRoundedOnce, dtype=d)\nbare = partial(nn.Dense, use_bias=False)\n"
        "conv = partial(ConvRoundedOnce, padding=1)\nx = partial(f, nn.Dense)\n"
        "y = partial(nn.LayerNorm)\n"
    )


class Alike(nn.Module):
    """Layers of one kind: their options are said once in the port."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third, self.out = (
            nn.Conv1d(8, 8, 3, stride=2, padding=2, dilation=2) for _ in range(4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.second(torch.relu(self.first(x))))
        return self.out(torch.relu(self.third(h)))


def test_layers_of_one_kind_round_once(load: Callable[[Port], Any]) -> None:
    torch.manual_seed(0)
    model, inputs = Alike().eval(), {"x": real(4, 8, 256)}
    plain = port(model, inputs)
    assert "partial(nn.Conv," in plain.modeling
    made = plain.rounding_once()
    assert made is not None
    assert "partial(ConvRoundedOnce," in made.modeling
    weights = jax.tree.map(halved, variables(model, plain, inputs)["params"])
    output = jax.jit(load(made).apply)({"params": weights}, **arrays(inputs))
    with torch.no_grad():
        bfloat16 = model.bfloat16()(inputs["x"].bfloat16()).float().numpy()
    truth = rounded(model.float(), inputs)[0]
    assert apart(output, truth) < 1.1 * apart(bfloat16, truth)

"""Methods of a model beside its forward: ported on request, named where they are not."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from converters.graph import GraphError, Port, port
from tests.converters.graph import with_methods
from tests.converters.graph.flax_side import Inputs, variables


def real(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def ids(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(1))


MASK = torch.arange(5)[None] < torch.tensor([[5], [3]])
LONG = torch.arange(7)[None] < torch.tensor([[2], [7], [4]])
# Model, inputs of the forward, and for each method those of the recording and others.
CASES: dict[str, tuple[Callable[[], Any], Inputs, dict[str, tuple[Inputs, Inputs]]]] = {
    "coder": (
        with_methods.Coder,
        {"x": real(2, 3, 8, 6)},
        {
            "encode": ({"x": real(2, 3, 8, 6)}, {"x": real(3, 3, 8, 6)}),
            "decode": ({"z": real(2, 4)}, {"z": real(5, 4)}),
        },
    ),
    "flow": (
        with_methods.Flow,
        {"x": real(4, 6)},
        {
            "inverse": ({"y": real(4, 6)}, {"y": real(3, 6)}),
            "sample": ({"z": real(4, 6)}, {"z": real(3, 6)}),
        },
    ),
    "lm": (
        with_methods.Lm,
        {"ids": ids(19, 2, 5)},
        {"embed": ({"ids": ids(19, 2, 5), "mask": MASK}, {"ids": ids(19, 3, 7), "mask": LONG})},
    ),
}
ALL = [(name, method) for name, (_, _, methods) in CASES.items() for method in methods]


@cache
def made(name: str) -> tuple[Any, Inputs, Port]:
    torch.manual_seed(0)
    factory, inputs, methods = CASES[name]
    model = factory().eval()
    return (
        model,
        inputs,
        port(model, inputs, None, {one: given[0] for one, given in methods.items()}),
    )


def as_numpy(inputs: Inputs) -> dict[str, Any]:
    return {name: jnp.asarray(one.numpy()) for name, one in inputs.items()}


def near(found: Any, wanted: torch.Tensor, limit: float = 2e-6) -> None:
    expected = wanted.detach().numpy()
    assert found.shape == expected.shape
    assert np.linalg.norm(np.asarray(found) - expected) <= limit * max(
        np.linalg.norm(expected), 1e-6
    )


@pytest.mark.parametrize(("name", "method"), ALL)
@pytest.mark.long_cases("flow-inverse", "lm-embed", "coder-encode")
def test_values_are_those_of_the_method(name: str, method: str, load: Any) -> None:
    model, inputs, written = made(name)
    flax, weights = load(written), variables(model, written, inputs)
    for given in CASES[name][2][method]:
        with torch.no_grad():
            wanted = getattr(model, method)(**given)
        near(flax.apply(weights, **as_numpy(given), method=method), wanted)


@pytest.mark.parametrize(("name", "method"), [one for one in ALL if one[1] != "sample"])
@pytest.mark.long_cases("flow-inverse", "coder-decode", "lm-embed")
def test_gradients_are_those_of_the_method(name: str, method: str, load: Any) -> None:
    model, inputs, written = made(name)
    flax, weights = load(written), variables(model, written, inputs)
    given = CASES[name][2][method][0]
    tensors = {
        key: one.clone().requires_grad_() if one.is_floating_point() else one
        for key, one in given.items()
    }
    model.zero_grad()
    outputs = getattr(model, method)(**tensors)
    weight = torch.arange(1.0, 1 + outputs.numel()).reshape(outputs.shape)
    (outputs * weight).sum().backward()
    floating = {key: one for key, one in as_numpy(given).items() if given[key].is_floating_point()}
    rest = {key: one for key, one in as_numpy(given).items() if key not in floating}

    def loss(params: Any, real: Any) -> jax.Array:
        found = flax.apply({**weights, "params": params}, **real, **rest, method=method)
        return (found * weight.numpy()).sum()

    of_params, of_inputs = jax.grad(loss, (0, 1))(weights["params"], floating)
    for key, gradient in of_inputs.items():
        near(gradient, tensors[key].grad, 1e-5)
    used = {key: one.grad for key, one in model.named_parameters() if one.grad is not None}
    total = np.sqrt(sum(float(one.square().sum()) for one in used.values()))
    whole = np.sqrt(sum(float(jnp.square(one).sum()) for one in jax.tree.leaves(of_params)))
    assert used
    assert abs(whole - total) <= 1e-5 * total


def test_the_forward_stays_as_it_is(load: Any) -> None:
    for name, (factory, inputs, _) in CASES.items():
        torch.manual_seed(0)
        alone = port(factory().eval(), inputs)
        with_them = made(name)[2].modeling
        start = alone.modeling.index("    def __call__", alone.modeling.rindex("\nclass "))
        assert alone.modeling[start:].strip() in with_them


def test_what_is_written_reads_as_the_original() -> None:
    coder, lm = made("coder")[2].modeling, made("lm")[2].modeling
    assert "    def encode(self, x: Array, deterministic: bool=True) -> Array:" in coder
    assert '"""Give the code of images. Their size may be any."""' in coder
    assert coder.index("def __call__", coder.index("class Coder")) < coder.index("def encode")
    assert "def embed(self, ids: Array, mask: Array) -> Array:" in lm
    assert coder.count("class Coder(") == lm.count("class Lm(") == lm.count("class Block(") == 1


def test_a_method_of_a_part_is_a_method_of_its_class() -> None:
    flow = made("flow")[2].modeling
    assert flow.count("    def inverse(self, y: Array) -> Array:") == 2
    assert flow.count("for flow in reversed(self.flows):\n            y = flow.inverse(y)") == 2
    assert "self.flows[" not in flow


def test_a_method_under_no_grad_passes_no_gradient(load: Any) -> None:
    model, inputs, written = made("flow")
    flax, weights = load(written), variables(model, written, inputs)
    z = jnp.asarray(real(4, 6).numpy())
    gradient = jax.grad(lambda z: flax.apply(weights, z=z, method="sample").sum())(z)
    assert not np.asarray(gradient).any()


def test_methods_that_are_left_out_are_named() -> None:
    torch.manual_seed(0)
    without = port(with_methods.Coder(), {"x": real(2, 3, 8, 6)})
    assert without.methods_left == ("encode", "decode")  # the others compute nothing
    assert any(
        "Coder.encode, Coder.decode" in note and "--methods encode,decode" in note
        for note in without.notes
    )
    assert made("coder")[2].methods_left == ()
    assert not any("--methods" in note for note in made("coder")[2].notes)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("encod", "Coder has no method encod of its own (its methods: encode, decode)"),
        ("forward", "no method forward of its own"),
        ("train", "no method train of its own"),
    ],
)
def test_a_method_that_is_none_is_refused(method: str, said: str) -> None:
    with pytest.raises(GraphError) as error:
        port(with_methods.Coder(), {"x": real(2, 3, 8, 6)}, None, {method: {"x": real(2, 3, 8, 6)}})
    assert said.partition(" (")[0] in str(error.value)
    assert "encode, decode" in str(error.value)


def test_a_name_that_every_flax_module_has_is_refused() -> None:
    class Named(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(3, 3)

        def init(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(x) + 1

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(x)

    with pytest.raises(GraphError, match="every Flax module has"):
        port(Named(), {"x": real(2, 3)}, None, {"init": {"x": real(2, 3)}})

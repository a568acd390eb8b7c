"""Ports in training: outputs, gradients and statistics as torch's, dropouts by their rates."""

from __future__ import annotations

import ast
import copy
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import linen as nn
from torch.overrides import TorchFunctionMode

from converters.errors import ConversionError
from converters.graph import port
from converters.modules.linen.modes import BatchNorm
from converters.single_draws import draws_compared
from tests.converters.graph import trained
from tests.converters.graph.flax_side import Inputs, variables


def real(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def ids(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(1))


CASES: dict[str, tuple[Callable[[], torch.nn.Module], Inputs]] = {
    "classifier": (trained.Classifier, {"x": real(4, 3, 9, 8)}),
    "vision": (trained.Vision, {"x": real(2, 3, 12, 8)}),
    "encoder": (trained.Encoder, {"x": real(2, 5, 8)}),
    "functional": (trained.Functional, {"x": real(2, 5, 6)}),
    "recurrent": (trained.Recurrent, {"x": real(2, 7, 4)}),
    "frozen": (trained.Frozen, {"x": real(2, 3, 9, 8)}),
    "labeled": (trained.Labeled, {"ids": ids(11, 2, 5), "labels": ids(11, 2, 5)}),
    "clamped": (trained.Clamped, {"x": real(2, 4)}),
    "replaced": (trained.Replaced, {"x": real(2, 4)}),
    "a mask of positions": (trained.Causal, {"x": real(2, 5, 6)}),
    "layers left out": (lambda: trained.LayerDrop(0.3), {"x": real(2, 4)}),
    "layers left out by Python": (lambda: trained.LayerDrop(0.3, True), {"x": real(2, 4)}),
    "layers left out of two stacks": (trained.Stacks, {"x": real(2, 4)}),
    "the only layer that reads": (trained.Crossed, {"x": real(2, 4)}),
    "layers kept": (lambda: trained.LayerDrop(0.0), {"x": real(2, 4)}),
    "layers kept by Python": (lambda: trained.LayerDrop(0.0, True), {"x": real(2, 4)}),
}


class _Kept(TorchFunctionMode):
    """Rates of 0: dropouts give what they are given."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        dropouts = (torch.dropout, torch.nn.functional.dropout, torch.nn.functional.dropout2d)
        if func in dropouts:
            return args[0] if args else kwargs["input"]
        if func is torch.nn.functional.scaled_dot_product_attention:
            kwargs["dropout_p"] = 0.0
            args = args[:4]
        if func is torch.Tensor.bernoulli_:
            return args[0].fill_(args[1])  # a mask divided by its mean is 1
        return func(*args, **kwargs)


@contextmanager
def kept() -> Iterator[None]:
    """Rates of 0 on Flax's side."""

    def run(next_: Any, args: Any, kwargs: Any, context: Any) -> Any:
        if isinstance(context.module, nn.Dropout) and context.method_name == "__call__":
            return args[0]
        if type(context.module).__name__ == "MultiHeadDotProductAttention":
            kwargs = {**kwargs, "deterministic": True}
        return next_(*args, **kwargs)

    with nn.intercept_methods(run):
        yield


def scalar(outputs: Any) -> Any:
    """A number of all outputs; the weights are the same on both sides."""
    leaves = outputs.values() if isinstance(outputs, dict) else [outputs]
    total: Any = 0.0
    for one in leaves:
        weights = np.cos(np.arange(int(np.prod(one.shape)))).reshape(one.shape)
        like = torch.tensor(weights, dtype=one.dtype) if isinstance(one, torch.Tensor) else weights
        total = total + (one * like).sum()
    return total


def trained_by_torch(model: torch.nn.Module, inputs: Inputs) -> float:
    """What `scalar` gives in training, at rates of 0; the model has gradients then."""
    model.train()
    for one in model.modules():
        if isinstance(one, torch.nn.RNNBase | torch.nn.MultiheadAttention):
            one.dropout = 0.0
    model.zero_grad()
    with _Kept(), draws_compared():
        value = scalar(model(**inputs))
        value.backward()
    return float(value.detach())


def arrays(inputs: Inputs) -> dict[str, Any]:
    return {name: jnp.asarray(one.numpy()) for name, one in inputs.items()}


def close(found: Any, expected: Any, limit: float = 1e-5, scale: float = 0.0) -> None:
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    assert found.shape == expected.shape
    norm = max(np.linalg.norm(expected), scale)
    assert np.linalg.norm(found - expected) <= limit * norm


# Their parts are in the other models.
LONG = {"classifier", "encoder"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if name in LONG else ()) for name in CASES]
)
@pytest.mark.long_cases(
    "the only layer that reads",
    "layers left out by Python",
    "replaced",
    "vision",
    "recurrent",
    "frozen",
    "functional",
    "labeled",
    "a mask of positions",
    "layers left out of two stacks",
)
def test_training_computes_what_torch_computes(name: str, load: Callable[..., Any]) -> None:
    make, inputs = CASES[name]
    torch.manual_seed(0)
    model = make().eval()
    written = port(model, inputs)
    assert written.trains
    assert not written.refused
    assert not model.training
    flax, weights = load(written), variables(model, written, inputs)
    with torch.no_grad():
        found, _ = scalar_of(flax, weights, inputs)
        close(found, float(scalar(model(**inputs))), scale=1.0)

    def loss(params: Any) -> Any:
        with kept():
            return scalar_of(flax, {**weights, "params": params}, inputs, deterministic=False)

    (value, changed), gradients = jax.value_and_grad(loss, has_aux=True)(weights["params"])
    wider = {key: wide(one) for key, one in inputs.items()}
    close(value, trained_by_torch(model.double(), wider), scale=1.0)
    torch_gradients = {
        key: one.grad if one.grad is not None else torch.zeros_like(one)
        for key, one in model.named_parameters()
    }
    expected = variables(_with(model, torch_gradients), written, inputs)["params"]
    squares = sum(float((one**2).sum()) for one in torch_gradients.values())
    scale = 1e-2 * squares**0.5  # a bias before a normalization has a gradient of rounding alone
    frozen = {key for key, one in model.named_parameters() if not one.requires_grad}
    jax.tree.map(lambda a, b: close(a, b, scale=scale) if np.any(b) else None, gradients, expected)
    assert frozen or any(np.any(one) for one in jax.tree.leaves(expected))
    statistics = variables(model, written, inputs).get("batch_stats", {})
    jax.tree.map(close, changed.get("batch_stats", {}), statistics)


def wide(one: torch.Tensor) -> torch.Tensor:
    return one.double() if one.is_floating_point() else one


def _with(model: torch.nn.Module, tensors: dict[str, torch.Tensor]) -> torch.nn.Module:
    """The model with other parameters, in float32."""
    with torch.no_grad():
        for key, one in model.named_parameters():
            one.copy_(tensors[key])
    return model.float()


def scalar_of(flax: Any, weights: Any, inputs: Inputs, **modes: Any) -> tuple[Any, Any]:
    outputs, changed = flax.apply(weights, **arrays(inputs), **modes, mutable=["batch_stats"])
    return scalar(outputs), changed


REFUSED: dict[str, tuple[Callable[[], torch.nn.Module], Inputs, str]] = {
    "two numbers": (trained.TwoNumbers, {"x": real(2, 4)}, "random number"),
    "another layer instead": (lambda: trained.Other(True), {"x": real(2, 4)}, "something else"),
    "layers that are kept below a rate": (
        lambda: trained.Other(False),
        {"x": real(2, 4)},
        "otherwise",
    ),
    "noise": (trained.Noisy, {"x": real(2, 4)}, "trained.py:"),
    "other weights": (trained.Averaged, {"x": real(2, 4)}, "differ"),
    "a norm of its own": (
        lambda: trained.Normed(trained.OwnNorm(3)),
        {"x": real(2, 3, 4, 5)},
        "the original changes norm.running_mean, norm.running_var, ",
    ),
    "an instance norm with statistics": (
        lambda: trained.Normed(torch.nn.InstanceNorm2d(3, track_running_stats=True)),
        {"x": real(2, 3, 4, 5)},
        "the original changes norm.running_mean",
    ),
    "one row": (lambda: trained.Normed(torch.nn.BatchNorm1d(3)), {"x": real(1, 3)}, "not run"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_training_that_is_not_in_a_port_is_refused(name: str, load: Callable[..., Any]) -> None:
    make, inputs, why = REFUSED[name]
    model = make().eval()
    written = port(model, inputs)
    assert why in written.refused
    assert not written.trains
    flax, weights = load(written), variables(model, written, inputs)
    with torch.no_grad():
        close(flax.apply(weights, **arrays(inputs)), model(**inputs), scale=1.0)
    with pytest.raises(NotImplementedError, match="training is not in this port"):
        flax.apply(weights, **arrays(inputs), deterministic=False)


def test_a_layer_that_is_left_out_gives_what_it_was_given(load: Callable[..., Any]) -> None:
    model = trained.Stacks(0.9).eval()
    inputs = {"x": real(2, 4)}
    written = port(model, inputs)
    assert "self.layer_drop = nn.Dropout(0.9)" in written.modeling
    flax, weights = load(written), variables(model, written, inputs)
    model.train()
    wanted = {}
    for kept in itertools.product([False, True], repeat=4):
        draws = iter(kept)
        with torch.no_grad(), _Chosen(draws):
            wanted[kept] = {name: one.numpy() for name, one in model(**inputs).items()}
    seen = set()
    for seed in range(12):
        rngs = {"dropout": jax.random.key(seed)}
        found = flax.apply(weights, **arrays(inputs), deterministic=False, rngs=rngs)
        seen |= {
            kept
            for kept, outputs in wanted.items()
            if all(np.allclose(found[name], one, atol=1e-6) for name, one in outputs.items())
        }
        assert any(
            all(np.allclose(found[name], one, atol=1e-6) for name, one in outputs.items())
            for outputs in wanted.values()
        )
    assert len(seen) > 2  # each is drawn by itself


class _Chosen(TorchFunctionMode):
    """Single random numbers that keep or drop, in this order."""

    def __init__(self, kept: Iterator[bool]) -> None:
        super().__init__()
        self.kept = kept

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.rand and args == ([],):
            return float(next(self.kept))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("penalty", [False, True])
def test_outputs_of_one_mode_are_none_in_the_other(penalty: bool, load: Callable[..., Any]) -> None:
    model, inputs = trained.Memory(penalty).eval(), {"x": real(2, 5, 4)}
    written = port(model, inputs)
    assert written.refused == ""
    assert "the original gives states in evaluation only: None in training" in written.notes
    assert penalty == any("penalty in training only" in note for note in written.notes)
    flax, weights = load(written), variables(model, written, inputs)
    with torch.no_grad():
        expected = model(**inputs)
    found = flax.apply(weights, **arrays(inputs))
    jax.tree.map(lambda a, b: close(a, b.numpy()), found["states"], expected["states"])
    close(found["x"], expected["x"].numpy())
    assert found.get("penalty") is None
    model.train()
    with torch.no_grad(), _Kept():
        expected = model(**inputs)
    with kept():
        found = flax.apply(weights, **arrays(inputs), deterministic=False)
    assert found["states"] is None
    close(found["x"], expected["x"].numpy())
    if penalty:
        close(found["penalty"], expected["penalty"].numpy())


def test_what_is_done_with_infinite_values_is_named() -> None:
    notes = port(trained.Clamped().eval(), {"x": real(2, 4)}).notes
    assert sum("values are taken to be finite" in note for note in notes) == 2
    assert sum("a check of values that the port does not make" in note for note in notes) == 1
    with pytest.raises(ConversionError, match="rests on values"):
        port(trained.Clamped(float("inf")).eval(), {"x": real(2, 4)})


def test_a_model_that_is_the_same_in_training_has_no_modes() -> None:
    written = port(trained.Plain().eval(), {"x": real(2, 4)})
    assert not written.trains
    assert not written.refused
    assert "deterministic" not in written.modeling
    assert "Dropout" not in written.modeling


def test_the_model_is_as_it_was(load: Callable[..., Any]) -> None:
    model = trained.Merged().eval()
    state = {key: one.clone() for key, one in model.state_dict().items()}
    written = port(model, {"x": real(2, 4)})
    assert written.trains
    assert not any(one.training for one in model.modules())
    assert model.merged
    assert all(torch.allclose(one, state[key]) for key, one in model.state_dict().items())


def test_statistics_are_those_of_torch_after_some_batches(load: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    model = trained.Classifier().eval()
    batches = [{"x": real(4, 3, 9, 8, seed=seed)} for seed in range(5)]
    written = port(model, batches[0])
    flax, weights = load(written), variables(model, written, batches[0])
    model.train()
    with torch.no_grad(), _Kept(), kept():
        for batch in batches:
            model(**batch)
            _, changed = flax.apply(
                weights, **arrays(batch), deterministic=False, mutable=["batch_stats"]
            )
            weights = {**weights, **changed}
    expected = variables(model, written, batches[0])["batch_stats"]
    jax.tree.map(close, weights["batch_stats"], expected)
    assert int(weights["batch_stats"]["features"]["layers_5"]["count"]) == 5


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_batch_normalization_is_as_exact_as_torchs_in_bfloat16(deterministic: bool) -> None:
    layer = torch.nn.BatchNorm1d(5).train(not deterministic)
    layer.running_mean = torch.full((5,), 7.0)
    x = (real(64, 5) + 7).bfloat16()
    exact = copy.deepcopy(layer).double()(x.double()).detach().numpy()
    theirs = layer.bfloat16()(x).detach().double().numpy()
    given = jnp.asarray(x.float().numpy(), jnp.bfloat16)
    for dtype, param in ((None, jnp.bfloat16), (jnp.bfloat16, jnp.float32)):
        flax = BatchNorm(dtype=dtype, param_dtype=param)
        weights = flax.init(jax.random.key(0), given)
        weights["batch_stats"]["mean"] = jnp.full(5, 7.0)
        found, _ = flax.apply(weights, given, deterministic, mutable=["batch_stats"])
        assert found.dtype == jnp.bfloat16
        errors = [np.linalg.norm(np.asarray(one, np.float64) - exact) for one in (found, theirs)]
        assert errors[0] <= 1.5 * errors[1]


def test_two_dropouts_of_one_tensor_differ_and_have_its_rate(load: Callable[..., Any]) -> None:
    model = trained.Functional(0.3).eval()
    inputs = {"x": real(64, 20, 6)}
    written = port(model, inputs)
    flax, weights = load(written), variables(model, written, inputs)
    masks = []

    def seen(next_: Any, args: Any, kwargs: Any, context: Any) -> Any:
        if isinstance(context.module, nn.Dropout) and context.method_name == "__call__":
            masks.append(np.asarray(next_(jnp.ones_like(args[0]), **kwargs)))
        return next_(*args, **kwargs)

    with nn.intercept_methods(seen):
        flax.apply(
            weights, **arrays(inputs), deterministic=False, rngs={"dropout": jax.random.key(0)}
        )
    assert len(masks) == 3
    for mask in masks:
        assert set(np.unique(mask)) == {np.float32(0), np.float32(1 / 0.7)}
        assert abs((mask > 0).mean() - 0.7) < 5 * (0.21 / mask.size) ** 0.5
    assert (masks[1] != masks[2]).any()


@pytest.mark.long
def test_source_is_as_one_would_write_it() -> None:
    vision = port(trained.Vision().eval(), CASES["vision"][1]).modeling
    tree = {one.name: ast.unparse(one) for one in ast.parse(vision).body if hasattr(one, "name")}
    assert "self.drop_path = nn.Dropout(self.rate, broadcast_dims=(1, 2))" in tree["Block"]
    assert "block(x, deterministic=deterministic)" in tree["Vision"]
    assert "DropPath" not in tree
    classifier = port(trained.Classifier().eval(), CASES["classifier"][1]).modeling
    assert "nn.Dropout(self.config.rate, broadcast_dims=(1, 2))" in classifier
    assert "self.features(jnp.moveaxis(x, 1, -1), deterministic=deterministic)" in classifier
    recurrent = port(trained.Recurrent().eval(), CASES["recurrent"][1]).modeling
    assert "self.lstm(x, deterministic=deterministic)" in recurrent
    assert "class _Stack" not in recurrent, "the short source drops between layers, too"

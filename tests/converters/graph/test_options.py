"""Inputs that a caller may leave out: one source with them and without them, equal to torch in both."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from converters.graph import Port, port
from converters.graph.merging import recorded
from converters.graph.merging.options import OptionError
from converters.graph.recording.trace import trace
from converters.graph.writing.forms.options import paddings_named
from tests.converters.graph import optional
from tests.converters.graph.flax_side import Inputs, variables


def ids(*shape: int) -> torch.Tensor:
    return torch.randint(0, 20, shape, generator=torch.Generator().manual_seed(1))


def real(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


TOKENS = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]])
EMPTY = torch.tensor([[0, 0, 0, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]])
PLACES = torch.tensor([[0, 0, 0, 1, 2], [0, 1, 2, 3, 4], [3, 4, 5, 6, 7]])
SEEN = TOKENS[:, None, None].bool().expand(3, 1, 5, 5)

CASES: dict[str, tuple[Callable[[], torch.nn.Module], Inputs, dict[str, list[torch.Tensor]]]] = {
    "filled": (optional.Encoder, {"ids": ids(3, 5)}, {"mask": [TOKENS, EMPTY]}),
    "truths": (optional.Encoder, {"ids": ids(3, 5)}, {"mask": [TOKENS.bool()]}),
    "added": (
        optional.Additive,
        {"ids": ids(3, 5)},
        {"attention_mask": [TOKENS, EMPTY], "position_ids": [PLACES]},
    ),
    "fused truths": (
        optional.Fused,
        {"x": real(3, 5, 8)},
        {"mask": [SEEN, EMPTY[:, None, None].bool().expand(3, 1, 5, 5)]},
    ),
    "normed": (optional.Normed, {"x": real(3, 6)}, {"mask": [real(3, 6) > 0]}),
    "fused biases": (optional.Fused, {"x": real(3, 5, 8)}, {"mask": [real(3, 1, 5, 5)]}),
}


def written(model: torch.nn.Module, inputs: Inputs) -> Port:
    made = port(model, inputs)
    assert made.missing == ()
    return made


def agree(model: torch.nn.Module, flax: Any, weights: Any, inputs: Inputs) -> None:
    with torch.no_grad():
        expected = model(**inputs).numpy()
    arrays = {name: jnp.asarray(one.numpy()) for name, one in inputs.items()}
    found = np.asarray(jax.jit(flax.apply)(weights, **arrays))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.long_cases("filled", "truths", "added")
def test_a_port_equals_torch_with_any_of_its_optional_inputs(
    name: str, load: Callable[..., Any]
) -> None:
    make, inputs, given = CASES[name]
    torch.manual_seed(0)
    model = make().eval()
    example = {**inputs, **{one: values[0] for one, values in given.items()}}
    made = written(model, example)
    assert {one.name for one in made.inputs if one.optional} == set(given)
    assert made.left == {}
    if name in ("filled", "fused truths"):
        assert {one.name for one in made.inputs if one.hides} == set(given)
    if name == "normed":
        assert not any(one.hides for one in made.inputs), "it masks no attention"
    flax, weights = load(made), variables(model, made, inputs)
    for count in range(len(given) + 1):
        for names in itertools.combinations(given, count):
            for values in itertools.product(*(given[one] for one in names)):
                agree(model, flax, weights, {**inputs, **dict(zip(names, values, strict=True))})


def test_a_mask_is_passed_through_the_layers_and_asked_for_where_it_is_used() -> None:
    made = written(optional.Encoder().eval(), {"ids": ids(3, 5), "mask": TOKENS})
    assert "ids: Array, mask: Array | None=None" in made.modeling
    assert "layer(x_2, mask)" in made.modeling
    assert made.modeling.count("mask is") == 2


def test_a_mask_of_padding_is_called_that() -> None:
    body = ast.parse(
        "output = None if mask is None else mask.astype(bool)[:, None, None]\n"
        "y = layer(x, output)\nresult = other if output is None else other & output"
    ).body
    made, result = paddings_named(body, ast.parse("head(y, result)", mode="eval").body, ["mask"])
    text = ast.unparse(ast.Module(made, []))
    assert "padding_mask = None if mask is None else" in text
    assert "y = layer(x, padding_mask)" in text
    assert "result = other if padding_mask is None else other & padding_mask" in text
    assert ast.unparse(result) == "head(y, result)"


def test_positions_are_counted_only_where_they_are_not_given() -> None:
    inputs = {"ids": ids(3, 5), "attention_mask": TOKENS, "position_ids": PLACES}
    text = written(optional.Additive().eval(), inputs).modeling
    assert "if position_ids is None:" in text
    assert "if attention_mask is not None:" in text


def test_a_side_of_an_input_is_never_read_of_one_that_may_be_left_out() -> None:
    inputs = {"ids": ids(3, 5), "attention_mask": TOKENS, "position_ids": PLACES}
    text = written(optional.Additive().eval(), inputs).modeling
    assert "attention_mask.shape" not in text
    assert "position_ids.shape" not in text


@pytest.mark.long
def test_a_model_that_drops_takes_its_mask_in_training_too(load: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    model = optional.Encoder().eval()
    made = written(model, {"ids": ids(3, 5), "mask": TOKENS})
    assert made.trains
    assert made.refused == ""
    flax, weights = load(made), variables(model, made, {"ids": ids(3, 5)})
    rngs = {"dropout": jax.random.key(0)}
    given = {"ids": jnp.asarray(ids(3, 5).numpy())}
    for more in ({}, {"mask": jnp.asarray(TOKENS.numpy())}):
        found = flax.apply(weights, **given, **more, deterministic=False, rngs=rngs)
        assert np.isfinite(np.asarray(found)).all()


def test_inputs_that_one_source_does_not_serve_stay_as_they_were_given() -> None:
    inputs = {"x": real(3, 4), "a": real(3, 4), "b": real(3, 4) + 1}
    made = written(optional.Together().eval(), inputs)
    assert not any(one.optional for one in made.inputs)
    assert set(made.left) == {"a", "b"}
    assert "a: Array | None" not in made.modeling


def test_an_input_without_a_default_of_none_is_no_option() -> None:
    class Needed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
            return self.linear(x) * scale

    made = written(Needed().eval(), {"x": real(3, 4), "scale": real(3, 4)})
    assert not any(one.optional for one in made.inputs)


@pytest.mark.parametrize("name", ["filled", "fused truths"])
@pytest.mark.long_cases("filled")
def test_a_row_of_padding_gives_in_bfloat16_what_torch_gives(
    name: str, load: Callable[..., Any]
) -> None:
    make, inputs, given = CASES[name]
    torch.manual_seed(0)
    model = make().eval()
    inputs = {**inputs, "mask": given["mask"][1]}
    made = written(model, inputs)
    flax, weights = load(made), variables(model, made, inputs)
    half = jax.tree.map(lambda one: one.astype(jnp.bfloat16), weights)
    arrays = {key: jnp.asarray(one.numpy()) for key, one in inputs.items()}
    arrays = {
        key: one.astype(jnp.bfloat16) if one.dtype == jnp.float32 else one
        for key, one in arrays.items()
    }
    found = np.asarray(flax.apply(half, **arrays).astype(jnp.float32))
    narrow = {
        key: one.bfloat16() if one.is_floating_point() else one for key, one in inputs.items()
    }
    with torch.no_grad():
        expected = model.bfloat16()(**narrow).float().numpy()
    assert np.isfinite(expected).all()
    np.testing.assert_allclose(found, expected, rtol=0.05, atol=0.05)


def test_a_count_that_follows_from_a_size_or_from_the_mask() -> None:
    """Without the mask the mean is over the length, with it over the tokens: a size against a tensor."""
    inputs = {"x": real(3, 5, 8)}
    made = written(optional.Averaged(), inputs | {"mask": TOKENS.bool()})
    assert [one.name for one in made.inputs] == ["x", "mask"]


class Texts(torch.nn.Module):
    """Takes tokens, and what transformers' text models take beside them."""

    main_input_name = "input_ids"
    config = None

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = torch.nn.Embedding(20, 4), torch.nn.Embedding(20, 4)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        x = self.tokens(input_ids)
        if position_ids is not None:
            x = x + self.places(position_ids)
        return x if attention_mask is None else x * attention_mask[..., None]


def test_a_model_is_recorded_once_without_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs_seen: list[tuple[str, ...]] = []

    def noted(module: torch.nn.Module, inputs: Inputs, **how: Any) -> Any:
        inputs_seen.append(tuple(inputs))
        return trace(module, inputs, **how)

    def never(*_: Any) -> Any:
        raise OptionError("never one source")

    monkeypatch.setattr(recorded, "trace", noted)
    monkeypatch.setattr(recorded, "merged", never)
    found = recorded.recorded(Texts(), {"input_ids": ids(2, 6)})
    assert set(found.options.refused) == {"attention_mask", "position_ids"}
    assert inputs_seen.count(("input_ids",)) == 1
    assert len(inputs_seen) == 3

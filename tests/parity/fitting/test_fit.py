"""Weights of torch in Flax models with names of their own: fitted by running, never proven where wrong."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import linen
from torch import nn

from converters import convert_to_pytree
from converters.errors import MisfitError
from converters.planning import planned
from converters.request import PlanOptions
from migrate.parity.fitting.results import DIFFER
from migrate.parity.ground.errors import ParityError
from tests.parity.fitting.follow import follow
from tests.parity.fitting.models import ConvNet, FlaxConvNet, FlaxTower, Tower, images, words


def independent(
    model: nn.Module, flax: Any, inputs: dict[str, Any], work: Path, last: bool
) -> float:
    """How far the outputs are apart with the weights that the mapping alone gives, in float32."""
    tree = convert_to_pytree(model.state_dict(), mapping=work / "mapping.yaml")
    given = next(iter(inputs.values()))
    with torch.no_grad():
        truth = model.eval()(torch.from_numpy(given)).numpy()
    mine = np.asarray(flax.apply(tree, np.moveaxis(given, 1, -1) if last else given))
    return float(np.linalg.norm(mine - truth) / np.linalg.norm(truth))


@pytest.mark.parametrize(
    "order",
    [
        "qkv",
        pytest.param("vkq", marks=pytest.mark.long),
        pytest.param("kqv", marks=pytest.mark.long),
    ],
)
def test_foreign_names_are_fitted_and_proven(order: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    model, flax = Tower(), FlaxTower(order=order)
    found = follow(model, flax, words(), tmp_path)
    assert found.proven, found.sentence
    assert found.sentence.startswith("fitted and proven: outputs agree to ")
    assert found.sentence.endswith("on 2 inputs")
    assert independent(model, flax, words()[0], tmp_path, last=False) < 1e-5


@pytest.mark.long
def test_a_factor_that_is_folded_into_the_query_is_written_and_proven(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model, flax = Tower(), FlaxTower("scale", everywhere=True)
    found = follow(model, flax, words(), tmp_path)
    assert found.proven, found.sentence
    text = (tmp_path / "mapping.yaml").read_text()
    assert text.count("times(0.5)") == 2, text  # kernel and bias, of all blocks
    assert "with a number folded into params/FlaxBlock_0/" in found.sentence
    assert found.sentence.endswith("times(0.5)) and 3 more"), found.sentence
    assert independent(model, flax, words()[0], tmp_path, last=False) < 1e-5


@pytest.mark.parametrize(
    "flatten", ["as torch", pytest.param("as it lies", marks=pytest.mark.long)]
)
@pytest.mark.long_cases("as torch")
def test_images_are_followed_channels_last(flatten: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    model, flax = ConvNet(), FlaxConvNet(flatten=flatten)
    found = follow(model, flax, images(), tmp_path, channels_last=("x",), example=[(2, 3, 8, 6)])
    assert found.proven, found.sentence
    # The shortcut is called first in Flax and last in torch.
    paths = {row.key: row.path for row in found.plan.mapped}
    assert paths["one.short.weight"] == "params/FlaxResidual_0/Conv_0/kernel"
    assert independent(model, flax, images()[0], tmp_path, last=True) < 1e-5


def some(names: Iterable[str], *quick: str) -> list[Any]:
    """All of them, those that are not quick for the long run."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.long) for name in names]


# What is wrong → the layer of Flax's before or in which it is seen.
OF_TOWERS = {
    "eps": "FlaxBlock_1.LayerNorm_0",
    "rotary halves": "FlaxBlock_1.DenseGeneral_3",
    "scale": "FlaxBlock_1.DenseGeneral_3",
    "missing residual": "FlaxBlock_1.LayerNorm_1",
    "gelu-tanh": "FlaxBlock_1.Dense_1",
    "relu": "FlaxBlock_1.Dense_1",
    "norm after": "LayerNorm_0",
    "scaled branch": "LayerNorm_0",
    "words scaled": "FlaxBlock_0.LayerNorm_0",
    "positions reversed": "FlaxBlock_0.LayerNorm_0",
    "mean": "Dense_0",
}


@pytest.mark.parametrize("wrong", some(OF_TOWERS, "scale", "words scaled"))
@pytest.mark.long_cases("words scaled")
def test_a_difference_is_never_proven_and_named_where_it_is(wrong: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    found = follow(Tower(), FlaxTower(wrong), words(), tmp_path)
    assert not found.proven
    assert not found.proven
    assert found.differences[0].layer == OF_TOWERS[wrong], found.sentence
    assert DIFFER in found.sentence


OF_IMAGES = {
    "eps": "FlaxResidual_0.BatchNorm_0",
    "padding": "FlaxResidual_0.Conv_1",
    "silu": "FlaxResidual_0.Conv_2",
    "missing relu": "FlaxResidual_1.Conv_0",
    "training": "FlaxResidual_0.BatchNorm_0",
    "normalized": "Conv_0",
}


@pytest.mark.long
@pytest.mark.parametrize("wrong", some(OF_IMAGES, "normalized"))
def test_the_same_of_images(wrong: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    found = follow(
        ConvNet(),
        FlaxConvNet(wrong),
        images(),
        tmp_path,
        channels_last=("x",),
        example=[(2, 3, 8, 6)],
    )
    assert not found.proven
    assert found.differences[0].layer == OF_IMAGES[wrong], found.sentence
    assert ("each channel times 4.55" in found.sentence) == (wrong == "normalized")


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "flax", "said"),
    [
        (lambda: Tower(), lambda: FlaxTower("missing bias"), "blocks.1.attention.wo.bias"),
        (lambda: Tower(3), lambda: FlaxTower(), "blocks.2.attention.wq.weight"),
        (lambda: Tower(1), lambda: FlaxTower(), "FlaxBlock_1/"),
    ],
)
def test_what_has_no_place_is_named_on_both_sides(
    model: Any, flax: Any, said: str, tmp_path: Path
) -> None:
    torch.manual_seed(1)
    with pytest.raises(MisfitError) as raised:
        follow(model(), flax(), words(), tmp_path)
    assert any(said in line for line in raised.value.misfits), raised.value.misfits


class Narrow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return x


class Wide(linen.Module):
    @linen.compact
    def __call__(self, x: Any) -> Any:
        for number in range(4):
            x = linen.relu(linen.Dense(9, name=f"layers_{number}")(x))
        return x


def test_other_sizes_are_a_short_line_for_each_weight(tmp_path: Path) -> None:
    with pytest.raises(MisfitError) as raised:
        follow(Narrow(), Wide(), [{"x": np.ones((2, 6), np.float32)}], tmp_path)
    assert len(raised.value.misfits) == 8
    first = raised.value.misfits[1]
    assert first.startswith("size: params/layers_0/kernel (6, 9)")
    assert first.endswith(", torch's layers.0.weight (6, 6)")
    message = str(raised.value)
    assert message.startswith("8 weights of the two models differ in size: ")
    assert len(message) < 400


@pytest.mark.long
def test_a_mapping_is_used_again_for_another_checkpoint(tmp_path: Path) -> None:
    torch.manual_seed(1)
    follow(Tower(), FlaxTower(), words(), tmp_path)
    torch.manual_seed(2)
    other, flax = Tower(), FlaxTower()
    assert not planned(
        other.state_dict(), PlanOptions(mapping=tmp_path / "mapping.yaml")
    ).plan.refused
    assert independent(other, flax, words()[0], tmp_path, last=False) < 1e-5


class Two(nn.Module):
    """Two towers of the same layers; the second is not for what is returned."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.left(x).tanh(), self.right(x).sin()


class FlaxTwo(linen.Module):
    exchanged: bool = False
    one: bool = False

    @linen.compact
    def __call__(self, x: Any) -> Any:
        a, b = linen.Dense(3)(x), linen.Dense(3)(x)
        if self.one:
            return np.tanh(1) * 0 + linen.tanh(a) + 0 * b
        return (
            (linen.tanh(b), np.sin(1) * 0 + jnp_sin(a))
            if self.exchanged
            else (linen.tanh(a), jnp_sin(b))
        )


def jnp_sin(x: Any) -> Any:
    import jax.numpy as jnp

    return jnp.sin(x)


NUMBERS = [{"x": np.random.default_rng(n).normal(size=(5, 4)).astype(np.float32)} for n in (0, 1)]


@pytest.mark.parametrize("exchanged", [False, True])
def test_twins_are_told_apart_by_what_they_give(exchanged: bool, tmp_path: Path) -> None:
    found = follow(Two(), FlaxTwo(exchanged), NUMBERS, tmp_path)
    assert found.proven, found.sentence
    places = {row.key: row.path for row in found.plan.mapped}
    assert places["left.weight"] == f"params/Dense_{int(exchanged)}/kernel"


class Idle(nn.Module):
    """What `right` gives is for another output."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.left(x) + 0 * self.right(x)


class FlaxIdle(linen.Module):
    @linen.compact
    def __call__(self, x: Any) -> Any:
        return linen.Dense(3)(x) + 0 * linen.Dense(3)(x)


def test_twins_of_which_one_does_nothing_are_not_proven(tmp_path: Path) -> None:
    found = follow(Idle(), FlaxIdle(), NUMBERS, tmp_path)
    assert not found.proven
    assert found.idle
    assert not found.differences
    assert "could be another" in found.sentence


class Random(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x) + float(np.random.random())


def test_a_model_that_draws_is_refused(tmp_path: Path) -> None:
    class Flax(linen.Module):
        @linen.compact
        def __call__(self, x: Any) -> Any:
            return linen.Dense(3)(x)

    with pytest.raises(ParityError, match="different values for the same input"):
        follow(Random(), Flax(), NUMBERS, tmp_path)


class Scaled(nn.Module):
    """A norm whose statistics are float32, and a table that no checkpoint holds."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.gain = nn.Parameter(1 + 0.1 * torch.randn(8))
        self.register_buffer("table", torch.arange(40.0).reshape(5, 8).cos(), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x).float()
        h = (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).type_as(x) * self.gain
        return self.last(h + self.table[: x.shape[1]])


class FlaxScaled(linen.Module):
    shift: float = 0.0

    @linen.compact
    def __call__(self, x: Any) -> Any:
        gain = self.param("gain", linen.initializers.ones, (8,))
        angles = jnp.arange(40.0).reshape(5, 8) + self.shift
        table = self.variable("buffers", "table", lambda: jnp.cos(angles)).value
        h = linen.Dense(8, name="a")(x).astype(jnp.float32)
        h = h * jax.lax.rsqrt(jnp.square(h).mean(-1, keepdims=True) + 1e-6)
        return linen.Dense(3, name="b")(h.astype(x.dtype) * gain + table[: x.shape[1]])


def test_a_table_that_torch_does_not_save_is_taken_from_the_model(tmp_path: Path) -> None:
    torch.manual_seed(4)
    model = Scaled()
    inputs = [{"x": np.random.default_rng(n).standard_normal((2, 4, 6), "f4")} for n in range(2)]
    found = follow(model, FlaxScaled(), inputs, tmp_path / "same")
    assert found.proven, found.sentence
    assert {name: array.tolist() for name, array in found.computed.items()} == {
        "buffers/table": model.table.tolist()
    }
    with pytest.raises(MisfitError) as caught:
        follow(model, FlaxScaled(1.0), inputs, tmp_path / "other")
    (lacking,) = [misfit for misfit in caught.value.misfits if misfit.startswith("missing")]
    assert "buffers/table (5, 8)" in lacking
    assert not any("differs from" in misfit for misfit in caught.value.misfits)
